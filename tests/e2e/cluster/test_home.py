"""Names, folders and locks of the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.cluster.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("name", ["", "Main", "a/b", "../x", "-a", "a-", "a" * 31, "a.b"])
def test_a_name_that_cannot_be_a_folder_everywhere_is_refused(home: Home, name: str) -> None:
    with pytest.raises(ValueError, match="at most 30 characters, for example 'main'"):
        home.cluster(name)


@pytest.mark.parametrize("name", ["a", "main", "tests-control-1234567", "a" * 30])
def test_a_plain_name_is_taken(home: Home, name: str) -> None:
    assert home.cluster(name).name == name


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path))
    assert Home.default().root == tmp_path
    monkeypatch.delenv("RLHF_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Home.default().root == Path("/home/somebody/.cache/rlhf-kube")


def test_a_store_is_claimed_once_and_free_when_its_descriptor_closes(home: Home) -> None:
    first, descriptor = home.claim_store()
    second, other = home.claim_store()
    assert first != second
    os.close(descriptor)
    again, descriptor = home.claim_store()
    assert again == first
    os.close(descriptor)
    os.close(other)
