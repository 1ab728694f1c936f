"""A small client for tests: any kind by name, server-side errors as they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client import ApiException
from kubernetes.dynamic import DynamicClient, ResourceInstance

Manifest = Mapping[str, Any]

GROUPS = {
    "v1": (
        "Pod", "Service", "ConfigMap", "Secret", "PersistentVolumeClaim", "PersistentVolume", "Namespace", "Node", "Event",
        "ServiceAccount", "ResourceQuota",
    ),
    "apps/v1": ("Deployment",),
    "coordination.k8s.io/v1": ("Lease",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "storage.k8s.io/v1": ("StorageClass",),
    "scheduling.k8s.io/v1": ("PriorityClass",),
    "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    "apiextensions.k8s.io/v1": ("CustomResourceDefinition",),
    "ray.io/v1": ("RayCluster",),
    "rlhf.dev/v1alpha1": ("RLHFJob",),
}
API_VERSION = {kind: version for version, kinds in GROUPS.items() for kind in kinds}


class Api:
    """Reads and writes plain dicts. ``namespace`` is the default for namespaced kinds."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._client = config.new_client_from_config(str(kubeconfig))
        self._dynamic: DynamicClient | None = None
        self.core = client.CoreV1Api(self._client)

    def within(self, namespace: str) -> Api:
        other = Api.__new__(Api)
        other.__dict__.update(self.__dict__, namespace=namespace)
        return other

    def _resource(self, kind: str) -> Any:
        if self._dynamic is None:
            # Discovery asks the server once; kinds installed later are found on the first miss.
            self._dynamic = DynamicClient(self._client)
        return self._dynamic.resources.get(api_version=API_VERSION[kind], kind=kind)

    def _place(self, resource: Any, namespace: str | None) -> dict[str, str]:
        return {"namespace": namespace or self.namespace} if resource.namespaced else {}

    def create(self, manifest: Manifest, namespace: str | None = None, **options: Any) -> dict[str, Any]:
        resource = self._resource(str(manifest["kind"]))
        place = self._place(resource, namespace or manifest.get("metadata", {}).get("namespace"))
        return _plain(resource.create(body=dict(manifest), **place, **options))

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        resource = self._resource(kind)
        try:
            return _plain(resource.get(name=name, **self._place(resource, namespace)))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, labels: str = "") -> list[dict[str, Any]]:
        resource = self._resource(kind)
        found = resource.get(label_selector=labels, **self._place(resource, namespace))
        return [item.to_dict() for item in found.items]

    def patch(self, kind: str, name: str, body: Manifest, namespace: str | None = None, status: bool = False) -> dict[str, Any]:
        """Merge patch of the object, or of its status."""
        resource = self._resource(kind)
        target = resource.status if status else resource
        place = self._place(resource, namespace)
        return _plain(target.patch(body=dict(body), name=name, content_type="application/merge-patch+json", **place))

    def delete(self, kind: str, name: str, namespace: str | None = None, grace_seconds: int | None = None) -> None:
        """Background deletion; not found is fine."""
        resource = self._resource(kind)
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            resource.delete(name=name, body=body, **self._place(resource, namespace))
        except ApiException as error:
            if error.status != 404:
                raise

    def http(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, seconds: float = 10
    ) -> tuple[int, str]:
        """A raw call to the API server: (status, text). For service proxies; an HTTP error is an answer, not an exception."""
        sent = {"Accept": "*/*", "Content-Type": "application/json", **(headers or {})}
        try:
            answer = self._client.rest_client.request(
                method, f"{self._client.configuration.host}{path}", headers=sent, body=body, _request_timeout=seconds
            )
        except ApiException as error:
            return int(error.status or 0), str(error.body or error.reason)
        data = answer.read()
        return int(answer.status), data.decode(errors="replace") if isinstance(data, bytes) else str(data)

    def logs(self, pod: str, container: str | None = None, namespace: str | None = None, previous: bool = False, lines: int = 200) -> str:
        options: dict[str, Any] = {"container": container} if container else {}
        return str(self.core.read_namespaced_pod_log(pod, namespace or self.namespace, previous=previous, tail_lines=lines, **options))


def _plain(instance: ResourceInstance) -> dict[str, Any]:
    found: dict[str, Any] = instance.to_dict()
    return found
