"""What cluster tests share: object builders, waiters that explain a time-out, evidence, a log scan, and the pytest fixtures."""
