import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from e2e.tools.cachefolder import SCRATCH_PREFIX, exclusive, scratch

HOLDER = """
import sys
from pathlib import Path
from e2e.tools.cachefolder import exclusive
from e2e.tools.process import run_logged
folder = Path(sys.argv[1])
with exclusive(folder, print):
    print("held", flush=True)
    run_logged(["sh", "-c", "echo $$ > pid.new && mv pid.new pid && exec sleep 60"], folder / "log", cwd=folder)
"""


def test_scratch_removes_itself_and_what_killed_processes_left(tmp_path: Path) -> None:
    left = tmp_path / f"{SCRATCH_PREFIX}old"
    left.mkdir()
    (left / "half").touch()
    finished = tmp_path / "etcd"
    finished.touch()

    def make_half() -> None:
        with scratch(tmp_path) as making:
            (making / "half").touch()
            assert not left.exists()
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        make_half()
    assert list(tmp_path.iterdir()) == [finished]


def test_a_second_process_waits_for_a_killed_one_s_compiler_and_no_longer(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    said: list[str] = []
    entered = threading.Event()

    def wait_for_it() -> None:
        with exclusive(tmp_path, said.append):
            entered.set()

    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        assert not entered.wait(0.3)
        deadline = time.monotonic() + 10
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        compiler = int((tmp_path / "pid").read_text())
        holder.kill()
        holder.wait()
        assert not entered.wait(0.3)
        os.kill(compiler, signal.SIGKILL)
        assert entered.wait(10)
        waiting.join()
    finally:
        holder.kill()
        holder.communicate()
    assert said == [f"Another process is preparing tools in {tmp_path}; waiting for it."]
