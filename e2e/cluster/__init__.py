"""Starts and stops single-machine Kubernetes clusters, each in Linux namespaces of its own."""
