"""The caches: nothing older replaces something newer, nothing that vanished stays, evidence is kept until it was used."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_operator.runtime.keys import JobKey
from rlhf_operator.runtime.store import GONE_MAX, GONE_SECONDS, Store

KEY = JobKey("ns", "job")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def body(name: str, version: int, uid: str = "u", **labels: str) -> dict[str, Any]:
    meta = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels, "managedFields": [{"big": 1}]}
    return {"metadata": meta}


def pod(uid: str, version: int, phase: str = "Running", job_uid: str = "j") -> dict[str, Any]:
    labels = {"rlhf.dev/job": "job", "rlhf.dev/job-uid": job_uid}
    return body(f"pod-{uid}", version, uid, **labels) | {"status": {"phase": phase}}


def cluster(version: int, uid: str = "c", owner: str = "j", **status: Any) -> dict[str, Any]:
    found = body("job", version, uid, **{"rlhf.dev/job": "job"})
    found["metadata"]["ownerReferences"] = [{"uid": owner}]
    return found | {"status": status}


def test_our_own_write_is_not_undone_by_a_late_watch_event():
    store = Store(Clock())
    assert store.put_job(body("job", 1)) == KEY
    assert store.put_job(body("job", 5)) == KEY
    assert store.put_job(body("job", 3)) is None
    assert store.put_job(body("job", 5)) is None
    stored = store.job(KEY)
    assert stored is not None
    assert stored["metadata"]["resourceVersion"] == "5"
    assert "managedFields" not in stored["metadata"]


def test_a_deletion_of_an_earlier_job_of_that_name_changes_nothing():
    store = Store(Clock())
    store.put_job(body("job", 9, "new"))
    assert store.drop_job(KEY, "old") is None
    assert store.job(KEY) is not None
    assert store.drop_job(KEY, "new") == KEY
    assert store.put_job(body("job", 10, "new")) is None, "reported deleted before"


def test_a_cluster_is_the_jobs_own_by_the_owners_uid():
    store = Store(Clock())
    assert store.put_cluster(cluster(1)) == KEY
    record = store.cluster(KEY)
    assert record is not None
    assert record.for_job("j", "w").owned
    assert not record.for_job("another", "").owned
    assert record.for_job("j", "w").warning == "w"


def test_a_cluster_that_lost_its_label_is_found_again_and_one_that_is_deleted_is_not():
    """The watch reports both as deleted, with the version that took the object away."""
    store = Store(Clock())
    store.put_cluster(cluster(1))
    assert store.drop_cluster(KEY, "c", 5) == KEY
    assert store.vanished(KEY)
    assert not store.vanished(KEY), "told once"
    assert store.put_cluster(cluster(4)) is None, "from before the deletion"
    assert store.put_cluster(cluster(5)) == KEY, "lives on with the version that has no label"
    assert store.put_cluster(cluster(6, readyWorkerReplicas=1)) == KEY


def test_a_cluster_that_lost_its_label_while_no_watch_ran_is_found_again():
    clock = Clock()
    store = Store(clock)
    store.put_cluster(cluster(3))
    clock.now = 200.0
    assert store.relist_clusters([], 200.0) == {KEY}
    assert store.put_cluster(cluster(3)) is None
    assert store.put_cluster(cluster(9)) == KEY


def test_a_cluster_has_its_jobs_name_whatever_its_labels_say():
    store = Store(Clock())
    found = cluster(1)
    found["metadata"]["labels"] = {"rlhf.dev/job": "another"}
    assert store.put_cluster(found) == KEY
    record = store.cluster(KEY)
    assert record is not None
    assert not record.for_job("j", "").marked


@pytest.mark.parametrize(
    ("labels", "owner", "known", "owned", "marked"),
    [
        ({"rlhf.dev/job": "job", "rlhf.dev/job-uid": "j"}, "j", "c", True, True),
        ({"rlhf.dev/job": "job"}, "j", "c", True, False),
        ({}, "j", None, True, False),
        ({"rlhf.dev/job": "job", "rlhf.dev/job-uid": "j"}, "", "c", True, False),
        ({"rlhf.dev/job": "job", "rlhf.dev/job-uid": "j"}, "", None, False, False),
        ({"rlhf.dev/job": "job", "rlhf.dev/job-uid": "j"}, "another", "c", False, False),
    ],
)
def test_whose_a_cluster_is_and_whether_it_says_so(labels, owner, known, owned, marked):
    store = Store(Clock())
    found = cluster(1, owner=owner)
    found["metadata"]["labels"] = labels
    if not owner:
        del found["metadata"]["ownerReferences"]
    store.put_cluster(found)
    record = store.cluster(KEY)
    assert record is not None
    view = record.for_job("j", "", known)
    assert (view.owned, view.marked) == (owned, marked)


def test_a_pod_whose_label_is_put_back_is_seen_again():
    store = Store(Clock())
    store.put_pod(pod("a", 1))
    store.put_pod(pod("a", 2), gone=True)
    assert store.put_pod(pod("a", 1)) is None
    assert store.put_pod(pod("a", 3)) == KEY
    assert [each.gone for each in store.pods(KEY, "j")] == [False]


def test_only_what_a_view_shows_wakes_the_job():
    store = Store(Clock())
    store.put_cluster(cluster(1, readyWorkerReplicas=1))
    assert store.put_cluster(cluster(2, readyWorkerReplicas=1, lastUpdateTime="2026-01-01T00:00:00Z")) is None
    assert store.put_cluster(cluster(3, readyWorkerReplicas=2)) == KEY
    store.put_pod(pod("a", 1))
    assert store.put_pod(pod("a", 2)) is None
    assert store.put_pod(pod("a", 3, "Failed")) == KEY


def test_pods_of_an_earlier_job_are_not_shown():
    store = Store(Clock())
    store.put_pod(pod("a", 1, job_uid="old"))
    store.put_pod(pod("b", 2))
    assert [each.uid for each in store.pods(KEY, "j")] == ["b"]


def test_the_last_body_of_a_deleted_pod_stays_until_a_stored_decision_used_it():
    clock = Clock()
    store = Store(clock)
    store.put_pod(pod("a", 1))
    assert store.put_pod(pod("a", 2, "Failed"), gone=True) == KEY
    (seen,) = store.pods(KEY, "j")
    assert (seen.gone, seen.phase) == (True, "Failed")
    assert store.put_pod(pod("a", 1)) is None, "a late event does not bring it back"
    store.settle(KEY, ["a"])
    assert store.pods(KEY, "j") == ()


def test_unused_evidence_is_bounded_in_time_and_number():
    clock = Clock()
    store = Store(clock)
    for number in range(GONE_MAX + 10):
        clock.now += 1
        store.put_pod(pod(f"p{number:03}", number), gone=True)
    assert len(store.pods(KEY, "j")) == GONE_MAX
    assert "p000" not in {each.uid for each in store.pods(KEY, "j")}
    clock.now += GONE_SECONDS
    store.relist_pods([], clock.now)
    assert store.pods(KEY, "j") == ()


def test_rc46_a_fresh_list_removes_what_vanished_while_no_watch_ran():
    clock = Clock()
    store = Store(clock)
    store.put_job(body("job", 1))
    store.put_job(body("gone", 2, "g"))
    store.put_cluster(cluster(3))
    store.put_pod(pod("a", 4))
    store.put_pod(pod("b", 5))
    clock.now = 200.0
    assert store.relist_jobs([body("job", 1)], 200.0) == {JobKey("ns", "gone")}
    assert store.relist_clusters([], 200.0) == {KEY}
    assert store.relist_pods([pod("a", 4)], 200.0) == {KEY}
    assert store.jobs() == (KEY,)
    assert store.cluster(KEY) is None
    assert {each.uid: each.gone for each in store.pods(KEY, "j")} == {"a": False, "b": True}


def test_what_came_after_the_list_began_is_not_taken_for_vanished():
    clock = Clock()
    store = Store(clock)
    began = clock.now
    clock.now += 1
    store.put_job(body("job", 7))
    store.put_pod(pod("a", 8))
    assert store.relist_jobs([], began) == set()
    assert store.relist_pods([], began) == set()
    assert store.job(KEY) is not None


def test_a_list_that_is_older_than_a_deletion_does_not_bring_it_back():
    clock = Clock()
    store = Store(clock)
    store.put_job(body("job", 1))
    began = clock.now
    store.drop_job(KEY, "u")
    assert store.relist_jobs([body("job", 1)], began) == set()
    assert store.job(KEY) is None


def test_a_forgotten_job_leaves_living_pods_for_a_new_one_to_wait_for():
    store = Store(Clock())
    store.put_pod(pod("a", 1))
    store.put_pod(pod("b", 2), gone=True)
    store.forget(KEY)
    assert [each.uid for each in store.pods(KEY, "j")] == ["a"]
