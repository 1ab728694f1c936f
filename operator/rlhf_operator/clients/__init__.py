"""Everything the operator talks to over the network: the API server, the Ray Jobs API and a driver's ``/progress``."""
