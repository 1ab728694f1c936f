from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from sync_fakes import layout_of

from rlhf_trainer.sync.backends import shm
from rlhf_trainer.sync.buckets import views


def test_reader_sees_what_was_written_and_keeps_it_after_the_sender_lets_go() -> None:
    transport = shm.Transport()
    sent = torch.randn(100, 7)
    info = transport.stage([("w", sent)])
    held = dict(views(shm.attach(info["path"], info["size_bytes"]), layout_of(info)))["w"]
    transport.release()
    assert torch.equal(held, sent)
    with pytest.raises(FileNotFoundError):
        shm.attach(info["path"], info["size_bytes"])


def test_each_bucket_has_memory_of_its_own() -> None:
    transport = shm.Transport()
    first = transport.stage([("w", torch.zeros(8))])
    held = dict(views(shm.attach(first["path"], first["size_bytes"]), layout_of(first)))["w"]
    transport.stage([("w", torch.ones(8))])
    transport.release()
    assert not held.any()


def test_nothing_is_left_behind_when_a_sender_dies_inside_a_sync(tmp_path: Path) -> None:
    """The segments have no names, so a killed process leaves neither files nor memory."""
    before = set(os.listdir("/dev/shm"))
    child = os.fork()
    if child == 0:
        shm.Transport().stage([("w", torch.ones(1 << 20))])
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert set(os.listdir("/dev/shm")) <= before


def test_interrupted_sync_is_dropped_by_the_next() -> None:
    transport = shm.Transport()
    paths = [transport.stage([("w", torch.zeros(4))])["path"] for _ in range(3)]
    transport.reset()
    assert not any(os.path.exists(path) for path in paths)
