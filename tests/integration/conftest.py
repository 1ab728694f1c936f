"""The control lane: a real API server, controller-manager and KubeRay; pods are marked by a helper."""

pytest_plugins = ["e2e.kit.fixtures"]
