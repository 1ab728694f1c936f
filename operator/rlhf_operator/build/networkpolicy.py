"""Who may talk to a job's pods: the pods themselves, the operator, and scrapers of metrics. What they call is not limited."""

from __future__ import annotations

from rlhf_api.spec import RLHFJob
from rlhf_operator import names
from rlhf_operator.build.metadata import Object, metadata, uid_of
from rlhf_operator.settings import OperatorSettings

OPERATOR_PORTS = (names.DASHBOARD_PORT, names.PROGRESS_PORT)
SCRAPED_PORTS = (names.RAY_METRICS_PORT, names.METRICS_PORT)


def network_policy(job: RLHFJob, settings: OperatorSettings) -> Object | None:
    """None where the job does without (``cluster.network.isolate: false``).

    Behind the API server's proxy the operator has the address of a control plane node, which no selector names: its two
    ports then answer everybody, and the token alone guards them.
    """
    if not job.spec.cluster.network.isolate:
        return None
    own_pods = {"matchLabels": {names.JOB_UID_LABEL: uid_of(job)}}
    from_operator: Object = {"ports": _ports(OPERATOR_PORTS)}
    if settings.head_access == "direct":
        operator_pods = {"matchLabels": dict(sorted(settings.operator_labels.items()))}
        operator_namespace = {"matchLabels": {names.NAMESPACE_NAME_LABEL: settings.namespace}}
        from_operator = {"from": [{"namespaceSelector": operator_namespace, "podSelector": operator_pods}], **from_operator}
    ingress: list[Object] = [{"from": [{"podSelector": own_pods}]}, from_operator]
    if settings.metrics_from:
        scrapers = {"namespaceSelector": {"matchLabels": dict(sorted(settings.metrics_from.items()))}}
        ingress.append({"from": [scrapers], "ports": _ports(SCRAPED_PORTS)})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.network_policy(job.metadata.name)),
        "spec": {"podSelector": own_pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _ports(numbers: tuple[int, ...]) -> list[Object]:
    return [{"protocol": "TCP", "port": number} for number in numbers]
