"""From what is seen of a job to what is to be done: pure functions of an observation, the time and settings."""
