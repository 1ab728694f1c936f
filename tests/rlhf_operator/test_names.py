from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlhf_api.spec import Metadata
from rlhf_operator import names

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
JOB_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)

# KubeRay 1.6: utils.MaxRayClusterNameLength, and what utils.PodName leaves for a prefix.
RAY_CLUSTER_MAX = 53
POD_PREFIX_MAX = 50


@given(JOB_NAMES)
def test_rc14_every_child_of_a_valid_job_has_a_valid_name(job: str) -> None:
    Metadata(name=job, uid=None, labels={}, annotations={})
    assert len(names.ray_cluster(job)) <= RAY_CLUSTER_MAX
    children = [names.ray_cluster(job), names.head_service(job), names.config_map(job), names.token_secret(job)]
    for child in [*children, names.checkpoint_claim(job), names.network_policy(job), names.disruption_budget(job)]:
        assert len(child) <= 63
        assert DNS_1035.fullmatch(child)
    assert LABEL_VALUE.fullmatch(job)


@given(JOB_NAMES)
def test_rc14_pods_of_the_head_keep_the_whole_name(job: str) -> None:
    assert len(f"{names.ray_cluster(job)}") <= POD_PREFIX_MAX


@given(JOB_NAMES, JOB_NAMES)
def test_rc14_two_jobs_never_share_a_child(one: str, other: str) -> None:
    if one != other:
        for child in (names.head_service, names.config_map, names.token_secret, names.checkpoint_claim, names.disruption_budget):
            assert child(one) != child(other)


@pytest.mark.parametrize("length", [41, 42, 47, 48, 53, 63, 64, 253])
def test_rc14_longer_names_are_refused_with_the_limit(length: int) -> None:
    with pytest.raises(ValidationError, match="40"):
        Metadata(name="a" * length, uid=None, labels={}, annotations={})


@pytest.mark.parametrize("name", ["a.b", "1st", "-a", "a-", "A"])
def test_rc14_names_that_no_service_can_have_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Metadata(name=name, uid=None, labels={}, annotations={})


def test_submission_ids_differ_by_attempt() -> None:
    assert names.submission_id("job", 1) == "job-a1"
    assert names.submission_id("job", 12) == "job-a12"


def test_rc13_command_line_holds_no_secret() -> None:
    assert names.entrypoint(3) == "exec python -m rlhf_trainer --job /etc/rlhf/job.yaml --attempt 3 --files /etc/rlhf/files"
