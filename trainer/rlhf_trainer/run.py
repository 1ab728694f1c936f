"""``rlhf run FILE``: the same driver as on a cluster, on a Ray that lives as long as the command.

Two processes: the command itself checks the manifest, watches and passes signals on; the driver runs in a session of its
own with everything it starts, so that a Ctrl-C, or a SIGTERM to the whole process group, reaches the driver alone and Ray
lives until the last checkpoint is written.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rlhf_api import manifest
from rlhf_api.exit_codes import ExitCode
from rlhf_api.resolve import to_yaml
from rlhf_api.spec import RLHFJob
from rlhf_trainer import cleanup
from rlhf_trainer.errors import ConfigError, JobError
from rlhf_trainer.stop import stop_on_signals

STOP_AT_ONCE_SECONDS = 5.0
OBJECT_STORE_BYTES = 512 << 20
"""Rows and log-probs travel through Ray; weights do not."""


class RunCommand:
    """Run a job on this machine: train as on a cluster, on a Ray that lives as long as the command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE", help="manifest (YAML)")
        parser.add_argument(
            "--set", dest="overrides", action="append", default=[], metavar="PATH=VALUE", help="override a field; may repeat"
        )
        parser.add_argument("--fresh", action="store_true", help="start anew; a former run of the same job is set aside, not deleted")
        parser.add_argument("--cpus", type=at_least_one, metavar="N", help="CPUs that Ray may share out (default: those of this machine)")
        parser.add_argument("--progress-port", type=port, metavar="PORT", help="port of /progress (default: 8290, or the next free one)")
        parser.add_argument(
            "--metrics-port", type=port, metavar="PORT", help="port of /metrics and /healthz (default: 8291, or the next free one)"
        )

    def execute(self, args: argparse.Namespace) -> int:
        try:
            loaded = manifest.load(args.file, args.overrides)
        except manifest.ManifestError as error:
            print(error, file=sys.stderr)
            return ExitCode.CONFIG
        for warning in loaded.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        job = loaded.job
        print(f"{job.metadata.namespace}/{job.metadata.name}: starting Ray; models are loaded next", flush=True)
        try:
            return supervise(forwarded(args))
        except OSError as error:
            print(f"failed: {error}", file=sys.stderr)
            return ExitCode.CONFIG


def forwarded(args: argparse.Namespace) -> list[str]:
    """The command line again, for the driver's process."""
    line = [str(args.file), *(word for override in args.overrides for word in ("--set", override))]
    for flag, value in (("--cpus", args.cpus), ("--progress-port", args.progress_port), ("--metrics-port", args.metrics_port)):
        line += [flag, str(value)] if value is not None else []
    return [*line, "--fresh"] if args.fresh else line


def supervise(arguments: list[str]) -> int:
    """Run the driver in a session of its own; returns its exit code. Whatever happens here or there, nothing is left."""
    mark = cleanup.new_mark()
    environment = {**os.environ, **cleanup.marked_environment(mark)}
    with cleanup.Guardian.start(mark, remove=[cleanup.ray_folder(mark)]):
        command = [sys.executable, "-m", "rlhf_trainer.run", *arguments]
        driver = subprocess.Popen(command, env=environment, start_new_session=True)

        asked = 0

        def pass_on(signum: int, _frame: FrameType | None) -> None:
            nonlocal asked
            asked += 1
            driver.send_signal(signum)
            if asked == 2:
                # Python handles two signals in quick succession as one; the user asked twice all the same.
                threading.Timer(STOP_AT_ONCE_SECONDS, driver.kill).start()

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, pass_on)
        code = driver.wait()
    if code < 0:
        print(f"the driver was ended by {signal.Signals(-code).name}; the same command continues from the last checkpoint", file=sys.stderr)
        return 128 - code
    return code


def drive(args: argparse.Namespace) -> int:
    """The driver's process."""
    mark = os.environ[cleanup.MARK_VARIABLE]
    loaded = manifest.load(args.file, args.overrides)
    job = with_uid(loaded.job)
    with stop_on_signals(lambda text: print(text, flush=True)) as stop:
        try:
            with local_ray(mark, args.cpus):
                # Imported here: torch takes seconds, and the supervising process needs none of it.
                from rlhf_trainer.driver import RunOptions, job_folder, run

                folder = job_folder(job, loaded.path.absolute().parent)
                options = RunOptions(
                    job_uid=job.metadata.uid or "",
                    fresh=args.fresh,
                    progress_port=args.progress_port,
                    metrics_port=args.metrics_port,
                    resolved=to_yaml(job),
                )
                with only_run(folder):
                    base_dir = loaded.materialize(folder.parent / f".{folder.name}-files").absolute()
                    return run(job, base_dir, folder, options, stop)
        except KeyboardInterrupt:
            print("interrupted before the job began", file=sys.stderr)
            return ExitCode.STOPPED
        except JobError as error:
            print(f"failed: {error}", file=sys.stderr)
            return error.exit_code
        except OSError as error:
            print(f"failed: {error}\n  Nearest: a checkpoint.path and a temporary folder (TMPDIR) that can be written.", file=sys.stderr)
            return ExitCode.USER
        finally:
            stop.ended = True


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold the job's folder against a second `rlhf run` of the same job on this machine."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.lock"
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise ConfigError(
                f"{folder}: this job is running already (process {holder})\n"
                "  Nearest: wait for it, stop it with Ctrl-C, or give this one another name: --set metadata.name=NAME."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def at_least_one(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def port(text: str) -> int:
    if not 1 <= (value := int(text)) <= 65_535:
        raise argparse.ArgumentTypeError(f"{value} is not a port; 1 to 65535")
    return value


def with_uid(job: RLHFJob) -> RLHFJob:
    """A local job has no API server that gives it a UID."""
    if job.metadata.uid:
        return job
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": str(uuid.uuid4())})})


@contextmanager
def local_ray(mark: str, cpus: int | None) -> Iterator[None]:
    """A Ray of our own in a folder of our own, so that nothing is shared with another run and nothing is left."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    if not Path("/dev/nvidiactl").exists():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    ray.init(
        address="local",
        num_cpus=cpus or len(os.sched_getaffinity(0)),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(cleanup.ray_folder(mark)),
    )
    try:
        yield
    finally:
        ray.shutdown()


RUN = RunCommand()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="rlhf run")
    RUN.add_arguments(parser)
    sys.exit(drive(parser.parse_args()))
