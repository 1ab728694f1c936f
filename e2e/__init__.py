"""A real Kubernetes and a real KubeRay on this machine, and the tests that run on them."""
