import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rlhf_trainer import cleanup
from rlhf_trainer.cleanup import Guardian, is_marked, marked_environment, new_mark, processes, sweep

# A tree of processes: one that ignores SIGTERM, a daemon in its own session, one that dropped its environment.
TREE = """
import os, signal, subprocess, sys, time
script = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.{}); print(1, flush=True); time.sleep(60)"
children = [
    subprocess.Popen([sys.executable, "-c", script.format("SIG_IGN")], stdout=subprocess.PIPE),
    subprocess.Popen([sys.executable, "-c", script.format("SIG_DFL")], stdout=subprocess.PIPE, start_new_session=True),
    subprocess.Popen([sys.executable, "-c", script.format("SIG_DFL")], stdout=subprocess.PIPE, env={}),
]
for child in children:
    child.stdout.readline()
print(os.getpid(), *(child.pid for child in children), flush=True)
time.sleep(60)
"""

# A driver as `rlhf run` is one: it marks its environment, starts the guardian, then its children.
DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
from rlhf_trainer.cleanup import Guardian, marked_environment
mark, tree, folder = sys.argv[1:4]
os.environ.update(marked_environment(mark))
guardian = Guardian.start(mark, remove=[Path(folder)], grace_seconds=0.5)
child = subprocess.Popen([sys.executable, "-c", tree], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(guardian.pid, child.stdout.readline().decode().strip(), flush=True)
{end}
"""


@pytest.fixture
def mark():
    mark = new_mark()
    yield mark
    sweep(mark, grace_seconds=0)


def alive(pid: int) -> bool:
    return pid in processes()


def wait_until(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def start_tree(mark: str) -> tuple[subprocess.Popen, list[int]]:
    tree = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, env={**os.environ, **marked_environment(mark)})
    return tree, [int(pid) for pid in tree.stdout.readline().split()]


def start_driver(mark: str, folder: Path, end: str = "time.sleep(60)") -> tuple[subprocess.Popen, int, list[int]]:
    command = [sys.executable, "-c", DRIVER.format(end=end), mark, TREE, str(folder)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    guardian, *pids = (int(pid) for pid in driver.stdout.readline().split())
    return driver, guardian, pids


def test_sweep_ends_the_whole_tree_and_nothing_else(mark):
    bystander = subprocess.Popen(["sleep", "60"])
    tree, pids = start_tree(mark)
    assert len(pids) == 4
    assert sweep(mark, grace_seconds=0.3) == 4
    assert not any(alive(pid) for pid in pids)
    assert tree.wait() < 0
    assert alive(bystander.pid)
    bystander.kill()
    bystander.wait()


def test_sweep_of_a_clean_run_finds_nothing_and_is_quick(mark):
    begin = time.monotonic()
    assert sweep(mark) == 0
    assert time.monotonic() - begin < 1.0


def test_only_the_exact_mark_counts(mark):
    tree, _ = start_tree(mark)
    assert is_marked(tree.pid, mark)
    assert not is_marked(tree.pid, mark[:-1])
    assert sweep(mark[:-1]) == 0
    assert alive(tree.pid)


def test_caller_and_its_ancestors_are_spared(mark):
    script = "import sys; from rlhf_trainer.cleanup import sweep; print(sweep(sys.argv[1], grace_seconds=0))"
    environment = {**os.environ, **marked_environment(mark), "PYTHONPATH": os.pathsep.join(sys.path)}
    shell = ["sh", "-c", '"$@"; echo after', "sh", sys.executable, "-c", script, mark]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "after"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_guardian_ends_everything_when_the_driver_is_killed(mark, tmp_path, how):
    folder = tmp_path / f"rlhf-{mark}"
    (folder / "session").mkdir(parents=True)
    driver, guardian, pids = start_driver(mark, folder)
    assert all(alive(pid) for pid in pids)
    driver.send_signal(how)
    driver.wait()
    assert wait_until(lambda: not alive(guardian))
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()


def test_guardian_sees_the_death_of_a_driver_whose_fork_still_holds_the_pipe(mark, tmp_path):
    end = "os.write(1, b'%d\\n' % os.fork()); time.sleep(60)"
    driver, guardian, pids = start_driver(mark, tmp_path / mark, end)
    fork = max(int(driver.stdout.readline()) for _ in range(2))
    driver.kill()
    driver.wait()
    assert alive(fork)
    assert wait_until(lambda: not alive(guardian))
    assert not any(alive(pid) for pid in pids)
    os.kill(fork, signal.SIGKILL)


def test_guardian_survives_the_signals_of_a_terminal(mark, tmp_path):
    driver, guardian, pids = start_driver(mark, tmp_path / mark)
    assert wait_until(lambda: "SigIgn:\t0000000000000000" not in Path(f"/proc/{guardian}/status").read_text())
    time.sleep(0.2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, number)
    time.sleep(0.1)
    assert alive(guardian)
    assert os.getsid(guardian) == guardian
    driver.kill()
    driver.wait()
    assert wait_until(lambda: not alive(guardian))
    assert not any(alive(pid) for pid in pids)


def test_normal_end_sweeps_at_once_and_lets_the_guardian_go(mark, tmp_path):
    folder = tmp_path / f"rlhf-{mark}"
    folder.mkdir()
    driver, guardian, pids = start_driver(mark, folder, "print(guardian.close(), flush=True)")
    assert int(driver.stdout.readline()) == 4
    assert driver.wait() == 0
    assert not alive(guardian)
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()


def test_guardian_holds_no_stream_of_the_driver(mark, tmp_path):
    driver, guardian, _ = start_driver(mark, tmp_path / mark)
    links = {fd: os.readlink(f"/proc/{guardian}/fd/{fd}") for fd in ("1", "2")}
    assert links == {"1": "/dev/null", "2": "/dev/null"}
    assert os.readlink(f"/proc/{guardian}/cwd") == "/"
    driver.kill()
    driver.wait()
    assert wait_until(lambda: not alive(guardian))


def test_pipeline_ends_with_the_driver_while_the_guardian_still_works(mark, tmp_path):
    driver, guardian, _ = start_driver(mark, tmp_path / mark)
    driver.kill()
    begin = time.monotonic()
    driver.communicate()
    assert time.monotonic() - begin < 0.4
    assert alive(guardian)
    assert wait_until(lambda: not alive(guardian))


def test_shared_memory_of_the_run_goes_and_that_of_others_stays(mark):
    script = (
        "import mmap, sys, time\n"
        "held = []\n"
        "for name in sys.argv[1:]:\n"
        "    file = open('/dev/shm/' + name, 'w+b'); file.truncate(4096); held.append(mmap.mmap(file.fileno(), 4096))\n"
        "print(1, flush=True); time.sleep(60)\n"
    )
    ours, data, named = f"psm_test_{mark[::-1]}", f"weights_{mark[::-1]}", f"anything_{mark}"
    environment = {**os.environ, **marked_environment(mark)}
    process = subprocess.Popen([sys.executable, "-c", script, ours, data], stdout=subprocess.PIPE, env=environment)
    process.stdout.readline()
    folder = Path("/dev/shm")
    (folder / named).write_bytes(b"x")
    sweep(mark, grace_seconds=0)
    process.wait()
    left = [name for name in (ours, data, named) if (folder / name).exists()]
    (folder / data).unlink()
    assert left == [data]


def test_folder_without_the_mark_is_refused(mark, tmp_path):
    with pytest.raises(ValueError, match="does not carry the mark"):
        Guardian.start(mark, remove=[tmp_path])


@pytest.mark.parametrize("length", [5, 29, 30, 31, 90])
def test_ray_folder_leaves_room_for_its_sockets(length, monkeypatch):
    usual = "/tmp/" + "t" * (length - 5)
    monkeypatch.setattr(tempfile, "tempdir", usual)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    folder = cleanup.ray_folder(new_mark())
    # Ray 2.60 puts session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store below it; Linux allows 107 bytes.
    assert len(f"{folder}/session_2026-11-29_20-26-43_953376_4194304/sockets/plasma_store") <= 107
    assert folder.parent == Path(usual if length < 30 else "/tmp")


def test_ray_folder_counts_bytes_and_needs_a_folder_that_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "é" * 20)
    assert cleanup.ray_folder(new_mark()).parent == Path("/tmp")
    monkeypatch.setattr(cleanup, "SHORT_FOLDER", tmp_path / "missing")
    with pytest.raises(OSError, match="set a TMPDIR of at most 29 bytes"):
        cleanup.ray_folder(new_mark())
