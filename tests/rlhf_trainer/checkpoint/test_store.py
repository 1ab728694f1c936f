import json
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from rlhf_trainer.checkpoint import durable, manifest
from rlhf_trainer.checkpoint.claim import FencedError
from rlhf_trainer.checkpoint.store import Checkpoint, CheckpointStore, folder_name
from rlhf_trainer.errors import ConfigError, JobError

FINGERPRINT = {"spec.training": {"seed": 42, "deepspeed": {"zeroStage": 2}}, "spec.placement.actor": "2 ranks"}


def open_store(folder: Path, **changes) -> CheckpointStore:
    settings = {"job_uid": "uid-1", "attempt": None, "fingerprint": FINGERPRINT, "keep_last": 2, **changes}
    return CheckpointStore(folder, **settings)


def claimed(folder: Path, **changes) -> CheckpointStore:
    store = open_store(folder, **changes)
    store.claim()
    return store


def writer(content: bytes, size: int = 1000):
    def write(folder: Path) -> dict:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights.bin").write_bytes(content * size)
        return {"cursor": content}

    return write


def save(store: CheckpointStore, step: int, size: int = 1000) -> Checkpoint:
    return store.save(step, writer(str(step % 10).encode(), size), data_fingerprint="data-1")


def step_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith((".tmp-", ".swap-")))


def flip_byte(path: Path, at: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_saved_state_comes_back(tmp_path):
    store = claimed(tmp_path)
    save(store, 140)
    again = claimed(tmp_path)
    checkpoint = again.latest()
    assert checkpoint is not None
    assert checkpoint.path == tmp_path / "step-000140"
    assert again.load_state(checkpoint) == {"cursor": b"0"}
    assert (checkpoint.path / "actor" / "weights.bin").read_bytes() == b"0" * 1000


def test_manifest_describes_the_folder(tmp_path):
    store = claimed(tmp_path, world_size=2, zero_stage=2)
    path = save(store, 3).path
    raw = json.loads((path / "manifest.json").read_text())
    assert raw["step"] == 3
    assert raw["jobUid"] == "uid-1"
    assert raw["attempt"] == 1
    assert raw["worldSize"] == 2
    assert raw["zeroStage"] == 2
    assert raw["dataFingerprint"] == "data-1"
    assert raw["fingerprint"] == FINGERPRINT
    assert "torch" in raw["versions"]
    assert raw["committedAt"].endswith("Z")
    weights = raw["files"]["actor/weights.bin"]
    assert weights["size"] == 1000
    assert weights["sha256"] == manifest.digest(path / "actor" / "weights.bin", sampled=False)
    assert set(raw["files"]) == {"actor/weights.bin", "driver.pkl"}


def test_no_checkpoint_at_all_is_none(tmp_path):
    assert claimed(tmp_path).latest() is None


def test_folder_without_manifest_does_not_exist(tmp_path):
    store = claimed(tmp_path)
    save(store, 1)
    shutil.copytree(tmp_path / "step-000001", tmp_path / "step-000002")
    (tmp_path / "step-000002" / "manifest.json").unlink()
    assert store.steps() == [1]
    assert store.latest().step == 1


def test_old_checkpoints_go_after_the_new_one_is_committed(tmp_path):
    store = claimed(tmp_path, keep_last=2)
    for step in (1, 2, 3, 4):
        save(store, step)
    assert step_folders(tmp_path) == ["step-000003", "step-000004"]


def test_large_steps_sort_by_number(tmp_path):
    store = claimed(tmp_path, keep_last=2)
    for step in (999_999, 1_000_000):
        save(store, step)
    assert store.latest().step == 1_000_000


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "driver"])
def test_damaged_newest_falls_back_to_the_one_before(tmp_path, caplog, damage):
    store = claimed(tmp_path)
    save(store, 1)
    path = save(store, 2).path
    weights = path / "actor" / "weights.bin"
    match damage:
        case "flip":
            flip_byte(weights, 500)
        case "truncate":
            os.truncate(weights, 999)
        case "remove":
            weights.unlink()
        case "manifest":
            (path / "manifest.json").write_text('{"format": 1')
        case "driver":
            flip_byte(path / "driver.pkl", 20)
    with caplog.at_level(logging.WARNING, logger="rlhf_trainer"):
        assert claimed(tmp_path).latest().step == 1
    assert "step-000002 is damaged" in caplog.text


def test_all_damaged_is_an_error_instead_of_a_start_from_zero(tmp_path):
    store = claimed(tmp_path)
    for step in (1, 2):
        flip_byte(save(store, step).path / "actor" / "weights.bin")
    with pytest.raises(JobError, match=r"every checkpoint is damaged") as caught:
        store.latest()
    assert "step-000001: actor/weights.bin" in str(caught.value)
    assert "--fresh" in str(caught.value)


def test_rotation_never_counts_a_damaged_checkpoint_as_kept(tmp_path):
    store = claimed(tmp_path, keep_last=1)
    save(store, 10)
    shutil.copytree(tmp_path / "step-000010", tmp_path / "step-000030")
    assert store.latest().step == 10
    save(store, 20)
    assert step_folders(tmp_path) == ["step-000020"]


def test_newer_format_is_refused_and_not_taken_for_damage(tmp_path):
    store = claimed(tmp_path)
    path = save(store, 1).path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2, "novelty": 1}))
    with pytest.raises(ConfigError, match="format 2 is newer"):
        store.latest()


def test_sampled_digest_notices_size_and_sampled_blocks(tmp_path):
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(200 << 20)
    before = manifest.digest(big, sampled=True)
    flip_byte(big, (200 << 20) - 1)
    assert manifest.digest(big, sampled=True) != before
    store = claimed(tmp_path / "job", sample_hash_above_bytes=500)
    entry = save(store, 1).manifest.files
    assert entry["actor/weights.bin"].sampled
    assert not entry["driver.pkl"].sampled
    assert store.latest().step == 1


def test_rc73_explicit_step_loads_that_step(tmp_path):
    store = claimed(tmp_path)
    save(store, 1)
    save(store, 2)
    early = store.at(1)
    assert store.load_state(early) == {"cursor": b"1"}
    assert (early.path / "actor" / "weights.bin").read_bytes() == b"1" * 1000
    with pytest.raises(ConfigError, match=r"no complete checkpoint of step 3") as caught:
        store.at(3)
    assert "1, 2" in str(caught.value)


def test_rc73_state_of_another_step_is_refused(tmp_path):
    store = claimed(tmp_path)
    save(store, 1)
    late = save(store, 2)
    with (tmp_path / "step-000001" / "driver.pkl").open("wb") as file:
        pickle.dump((2, {}), file)
    early = Checkpoint(1, tmp_path / "step-000001", late.manifest)
    with pytest.raises(JobError, match="holds the state of step 2"):
        store.load_state(early)


def test_rc73_going_back_leaves_the_abandoned_line_behind(tmp_path):
    store = claimed(tmp_path, keep_last=3)
    for step in (10, 20, 30):
        save(store, step)
    store.at(10)
    assert step_folders(tmp_path) == ["step-000010", "step-000020", "step-000030"]
    save(store, 15)
    assert step_folders(tmp_path) == ["step-000010", "step-000015"]


def test_same_step_can_be_saved_again(tmp_path):
    store = claimed(tmp_path, keep_last=1)
    save(store, 5)
    store.save(5, writer(b"x"))
    assert store.load_state(store.latest()) == {"cursor": b"x"}
    assert leftovers(tmp_path) == []


def test_kill_between_the_renames_of_a_replacement_loses_nothing(tmp_path):
    save(claimed(tmp_path, keep_last=1), 5)
    (tmp_path / "step-000005").rename(tmp_path / ".swap-step-000005")
    assert claimed(tmp_path).latest().step == 5


def test_claim_removes_what_an_earlier_attempt_left_half_done(tmp_path):
    (tmp_path / ".tmp-step-000004-a1-0000").mkdir()
    (tmp_path / ".tmp-step-000004-a1-0000" / "weights.bin").write_bytes(b"x")
    claimed(tmp_path)
    assert leftovers(tmp_path) == []


def test_export_replaces_the_final_model_as_a_whole(tmp_path):
    store = claimed(tmp_path)
    store.export("final", lambda folder: (folder / "a").write_text("1"))

    def broken(folder: Path) -> None:
        (folder / "a").write_text("2")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.export("final", broken)
    assert (tmp_path / "final" / "a").read_text() == "1"
    store.export("final", lambda folder: (folder / "b").write_text("3"))
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["b"]
    assert leftovers(tmp_path) == []


def test_older_attempt_cannot_commit(tmp_path):
    old = claimed(tmp_path)
    save(old, 1)
    new = claimed(tmp_path)
    with pytest.raises(FencedError, match=r"attempt 1 .* attempt 2"):
        save(old, 2)
    with pytest.raises(FencedError):
        old.export("final", lambda folder: None)
    assert new.steps() == [1]
    assert leftovers(tmp_path) == []


def test_older_attempt_cannot_commit_what_it_was_writing_when_it_was_superseded(tmp_path):
    old = claimed(tmp_path)

    def slow(folder: Path) -> dict:
        (folder / "a").write_text("1")
        claimed(tmp_path)
        (folder / "b").write_text("2")
        return {}

    with pytest.raises(FencedError, match="has taken over"):
        old.save(1, slow)
    assert step_folders(tmp_path) == []


def test_changed_field_is_refused_with_both_values_and_the_way_on(tmp_path):
    checkpoint = save(claimed(tmp_path), 1)
    changed = {**FINGERPRINT, "spec.training": {"seed": 43, "deepspeed": {"zeroStage": 2}}}
    with pytest.raises(ConfigError) as caught:
        claimed(tmp_path, fingerprint=changed).check_fingerprint(checkpoint)
    assert "spec.training.seed: saved with 42, now 43" in str(caught.value)
    assert "--fresh" in str(caught.value)
    claimed(tmp_path).check_fingerprint(checkpoint)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spec.placement.actor": "3 ranks"}, "spec.placement.actor: saved with 2 ranks, now 3 ranks"),
        ({"spec.training": {"seed": 42, "deepspeed": {"zeroStage": 3}}}, "spec.training.deepspeed.zeroStage: saved with 2, now 3"),
    ],
)
def test_rc22_other_layout_is_refused_with_saved_and_requested(tmp_path, change, text):
    checkpoint = save(claimed(tmp_path), 1)
    with pytest.raises(ConfigError, match=r"exit|saved") as caught:
        claimed(tmp_path, fingerprint={**FINGERPRINT, **change}).check_fingerprint(checkpoint)
    assert text in str(caught.value)
    assert caught.value.exit_code == 2


def test_rc47_other_data_is_refused_with_both_fingerprints(tmp_path):
    store = claimed(tmp_path)
    checkpoint = save(store, 1)
    store.check_data(checkpoint, "data-1")
    with pytest.raises(ConfigError, match=r"data-1.*data-2") as caught:
        store.check_data(checkpoint, "data-2")
    assert "--fresh" in str(caught.value)


def test_rc07_writer_that_fails_leaves_the_old_checkpoint_alone(tmp_path):
    store = claimed(tmp_path, keep_last=1)
    save(store, 2)

    def broken(folder: Path) -> dict:
        (folder / "half").write_bytes(b"x" * 100)
        raise RuntimeError("a worker died")

    with pytest.raises(RuntimeError, match="a worker died"):
        store.save(4, broken)
    assert step_folders(tmp_path) == ["step-000002"]
    assert leftovers(tmp_path) == []
    assert claimed(tmp_path).latest().step == 2


def test_rc07_error_of_a_full_disk_says_needed_and_free_bytes(tmp_path):
    store = claimed(tmp_path, keep_last=1)
    needed = save(store, 2).manifest.size_bytes

    def full(folder: Path) -> dict:
        # A worker's error crosses processes as another type with the cause in its text.
        raise RuntimeError("worker failed") from RuntimeError("OSError: [Errno 28] No space left on device")

    with pytest.raises(JobError, match="disk is full") as caught:
        store.save(4, full)
    assert f"{needed} bytes" in str(caught.value)
    assert "step-000002 is complete and kept" in str(caught.value)
    assert step_folders(tmp_path) == ["step-000002"]


@pytest.fixture
def small_disk(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", mount], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_rc07_full_disk_keeps_the_old_checkpoint(small_disk):
    store = claimed(small_disk, keep_last=1)
    needed = save(store, 2, size=2 << 20).manifest.size_bytes
    with pytest.raises(JobError, match="disk is full") as caught:
        save(store, 4, size=2 << 20)
    text = str(caught.value)
    assert f"{needed} bytes" in text
    free = int(text.split(" bytes) were free")[0].rsplit("(", 1)[1])
    assert 0 < free < 1 << 20
    assert step_folders(small_disk) == ["step-000002"]
    assert leftovers(small_disk) == []
    again = claimed(small_disk, keep_last=1)
    assert again.load_state(again.latest()) == {"cursor": b"2"}
    assert save(again, 4, size=1000).step == 4


def test_rc07_full_disk_at_the_first_checkpoint_says_so(small_disk):
    with pytest.raises(JobError, match=r"(?s)needs more than .* There is no earlier checkpoint") as caught:
        save(claimed(small_disk), 1, size=5 << 20)
    assert caught.value.exit_code == 1
    assert leftovers(small_disk) == []


def save_for_ever(folder: Path, pipe) -> None:
    store = claimed(folder, fingerprint={}, keep_last=1)
    newest = store.latest()
    step = newest.step if newest else 0
    pipe.send(step)
    while True:
        step += 1

        def write(folder: Path, step: int = step) -> dict:
            for part in range(4):
                (folder / f"part-{part}").write_bytes(bytes([step % 256]) * 200_000)
            return {"step": step}

        store.save(step, write)
        pipe.send(step)


def drain(pipe) -> list[int]:
    found = []
    try:
        while True:
            found.append(pipe.recv())
    except EOFError:
        return found


def test_rc07_sigkill_at_random_moments_of_a_save_always_leaves_a_good_checkpoint(tmp_path):
    rng = random.Random(7)
    context = multiprocessing.get_context("fork")
    begin = time.monotonic()
    save(claimed(tmp_path / "measure"), 1, size=800_000)
    one_save_seconds = time.monotonic() - begin
    reached = kills = 0
    while kills < 12 or reached <= 3:
        kills += 1
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=save_for_ever, args=(tmp_path, theirs))
        process.start()
        theirs.close()
        assert ours.recv() == reached
        time.sleep(rng.uniform(0.0, 4.0) * one_save_seconds)
        process.kill()
        process.join()
        committed = max([reached, *drain(ours)])
        store = open_store(tmp_path, fingerprint={})
        newest = store.latest()
        assert (newest.step if newest else 0) in (committed, committed + 1)
        if newest:
            reached = newest.step
            assert store.load_state(newest) == {"step": reached}
            assert (newest.path / "part-3").read_bytes() == bytes([reached % 256]) * 200_000
    claimed(tmp_path)
    assert leftovers(tmp_path) == []


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "file.json"
    durable.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        durable.write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_folder_name_is_six_digits():
    assert folder_name(140) == "step-000140"
