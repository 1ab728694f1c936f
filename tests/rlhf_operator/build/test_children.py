from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_api.spec import RLHFJob
from rlhf_operator.build import Refused, children, claim, claim_name, disruption_budget, network_policy, token, token_secret
from rlhf_operator.settings import OperatorSettings

MakeJob = Callable[..., RLHFJob]


def test_children_in_the_order_in_which_they_are_needed(make_job: MakeJob, settings: OperatorSettings) -> None:
    kinds = [found["kind"] for found in children(make_job("separate"), settings).objects]
    assert kinds == ["ConfigMap", "Secret", "PersistentVolumeClaim", "NetworkPolicy", "RayCluster"]
    guarded = children(make_job("tiny"), dataclasses.replace(settings, head_disruption_budget=True))
    assert [found["kind"] for found in guarded.objects] == ["ConfigMap", "Secret", "NetworkPolicy", "PodDisruptionBudget", "RayCluster"]
    bare = children(make_job("tiny", {"cluster.network": {"isolate": False}}), settings)
    assert [found["kind"] for found in bare.objects] == ["ConfigMap", "Secret", "RayCluster"]


def test_every_child_says_whose_it_is(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job("separate")
    for found in children(job, dataclasses.replace(settings, head_disruption_budget=True)).objects:
        metadata = found["metadata"]
        assert metadata["namespace"] == "team"
        assert metadata["labels"]["rlhf.dev/job"] == "example"
        assert metadata["labels"]["rlhf.dev/job-uid"] == job.metadata.uid
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "rlhf-operator"
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [job.metadata.uid]


def test_refused_cluster_leaves_the_rest(make_job: MakeJob, settings: OperatorSettings) -> None:
    found = children(make_job("tiny", {"cluster.podOverlay": {"spec": {"restartPolicy": "Never"}}}), settings)
    assert isinstance(found.ray_cluster, Refused)
    assert [each["kind"] for each in found.objects] == ["ConfigMap", "Secret", "NetworkPolicy"]


def test_objects_are_plain_json(make_job: MakeJob, settings: OperatorSettings) -> None:
    for found in children(make_job("infiniband"), settings).objects:
        assert json.loads(json.dumps(found)) == found


def test_token_is_derived_from_the_uid(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job()
    uid = job.metadata.uid
    assert uid is not None
    expected = hmac.new(settings.token_key, uid.encode(), hashlib.sha256).hexdigest()
    found = token_secret(job, settings.token_key)
    assert found["metadata"]["name"] == "example-ray-token"
    assert found["stringData"] == {"auth_token": expected}
    assert token(job, settings.token_key) == expected


def test_rc13_token_is_in_its_secret_alone(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job("infiniband")
    secret = token(job, settings.token_key)
    holders = [found["kind"] for found in children(job, settings).objects if secret in json.dumps(found)]
    assert holders == ["Secret"]


@pytest.mark.parametrize(
    ("volume", "name", "owned"),
    [
        ({"create": {"size": "1Ti"}}, "example-ckpt", False),
        ({"create": {"size": "1Ti", "retain": False}}, "example-ckpt", True),
        ({"existingClaim": "runs"}, "runs", None),
    ],
)
def test_checkpoint_claim(volume: dict[str, Any], name: str, owned: bool | None, make_job: MakeJob) -> None:
    job = make_job("tiny", {"checkpoint.volume": volume})
    found = claim(job)
    assert claim_name(job) == name
    if owned is None:
        assert found is None
        return
    assert found is not None
    assert found["metadata"]["name"] == name
    assert ("ownerReferences" in found["metadata"]) is owned
    assert found["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}


def test_rc35_claim_asks_for_the_modes_and_class_that_the_job_names(make_job: MakeJob) -> None:
    create = {"size": 1000, "storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}
    found = claim(make_job("tiny", {"checkpoint.volume": {"create": create}}))
    assert found is not None
    assert found["spec"] == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": 1000}}, "storageClassName": "fast"}


def test_only_the_job_the_operator_and_scrapers_get_in(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job()
    found = network_policy(job, settings)
    assert found is not None
    own_pods = {"matchLabels": {"rlhf.dev/job-uid": job.metadata.uid}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rlhf-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "rlhf-operator"}},
    }
    scrapers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert found["spec"] == {
        "podSelector": own_pods,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": own_pods}]},
            {"from": [operator], "ports": [{"protocol": "TCP", "port": 8265}, {"protocol": "TCP", "port": 8290}]},
            {"from": [scrapers], "ports": [{"protocol": "TCP", "port": 8080}, {"protocol": "TCP", "port": 8291}]},
        ],
    }


def test_behind_the_proxy_only_two_ports_are_open_to_all(make_job: MakeJob, settings: OperatorSettings) -> None:
    behind = dataclasses.replace(settings, head_access="proxy", metrics_from={})
    found = network_policy(make_job(), behind)
    assert found is not None
    open_to_all = [rule for rule in found["spec"]["ingress"] if "from" not in rule]
    assert open_to_all == [{"ports": [{"protocol": "TCP", "port": 8265}, {"protocol": "TCP", "port": 8290}]}]
    assert len(found["spec"]["ingress"]) == 2


def test_the_head_alone_has_a_disruption_budget_where_the_settings_say_so(make_job: MakeJob, settings: OperatorSettings) -> None:
    job = make_job()
    assert disruption_budget(job, settings) is None
    found = disruption_budget(job, dataclasses.replace(settings, head_disruption_budget=True))
    assert found is not None
    assert (found["apiVersion"], found["kind"], found["metadata"]["name"]) == ("policy/v1", "PodDisruptionBudget", "example-head")
    assert found["spec"] == {
        "minAvailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": {"rlhf.dev/job-uid": job.metadata.uid, "ray.io/node-type": "head"}},
    }
