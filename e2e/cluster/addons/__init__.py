"""Processes that stand in for the parts of a cluster which this machine cannot run, started inside the sandbox."""
