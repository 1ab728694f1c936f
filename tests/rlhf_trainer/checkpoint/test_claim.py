import json

import pytest

from rlhf_trainer.checkpoint import claim
from rlhf_trainer.checkpoint.claim import Claim, FencedError
from rlhf_trainer.errors import ConfigError


def stored(**changes) -> Claim:
    return Claim(**{"job_uid": "a", "attempt": 3, "holder": "h1", **changes})


def test_first_claim():
    assert claim.decide(None, "a", None, "h").attempt == 1
    assert claim.decide(None, "a", 4, "h").attempt == 4


def test_local_start_continues_at_the_stored_attempt_plus_one():
    assert claim.decide(stored(), "a", None, "h2").attempt == 4
    assert claim.decide(stored(), "other-local-run", None, "h2").attempt == 4


def test_new_uid_continues_at_the_stored_attempt_plus_one():
    first = claim.decide(stored(), "b", 1, "h2")
    assert (first.job_uid, first.attempt) == ("b", 4)
    second = claim.decide(first, "b", 2, "h3")
    assert second.attempt == 5


def test_older_attempt_may_not_claim():
    with pytest.raises(FencedError, match="attempt 2 of job a: attempt 3 has taken over"):
        claim.decide(stored(), "a", 2, "h2")


def test_superseded_uid_may_not_come_back():
    successor = claim.decide(stored(), "b", 1, "h2")
    with pytest.raises(FencedError, match="belongs to job b"):
        claim.decide(successor, "a", 9, "h3")


def test_same_attempt_again_takes_over_from_its_first_process(tmp_path):
    first = claim.take(tmp_path, "a", 1)
    claim.ensure(tmp_path, first)
    second = claim.take(tmp_path, "a", 1)
    claim.ensure(tmp_path, second)
    with pytest.raises(FencedError):
        claim.ensure(tmp_path, first)


def test_removed_claim_fences(tmp_path):
    mine = claim.take(tmp_path, "a", 1)
    (tmp_path / claim.FILE_NAME).unlink()
    with pytest.raises(FencedError, match="is gone"):
        claim.ensure(tmp_path, mine)


def test_claim_file_names_uid_and_attempt(tmp_path):
    claim.take(tmp_path, "a", 7)
    raw = json.loads((tmp_path / "claim.json").read_text())
    assert raw["jobUid"] == "a"
    assert raw["attempt"] == 7


def test_unreadable_claim_is_a_configuration_error(tmp_path):
    (tmp_path / "claim.json").write_text("{")
    with pytest.raises(ConfigError, match=r"claim\.json: not a claim file"):
        claim.read(tmp_path)
