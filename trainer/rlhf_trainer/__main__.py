"""The entry point on a cluster: ``python -m rlhf_trainer --job /etc/rlhf/job.yaml --attempt N``, on the Ray head."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import ray

from rlhf_api import manifest
from rlhf_api.exit_codes import ExitCode
from rlhf_api.plan import plan
from rlhf_api.resolve import to_yaml
from rlhf_trainer.driver import RunOptions, job_folder, run
from rlhf_trainer.errors import JobError
from rlhf_trainer.placement.pools import await_devices
from rlhf_trainer.run import with_uid
from rlhf_trainer.stop import stop_on_signals
from rlhf_trainer.telemetry.progress_server import METRICS_PORT, PROGRESS_PORT

TOKEN_VARIABLES = ("RLHF_PROGRESS_TOKEN", "RAY_AUTH_TOKEN")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rlhf_trainer", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="resolved RLHFJob")
    parser.add_argument("--attempt", type=int, required=True, help="attempt number, from 1")
    parser.add_argument("--files", type=Path, help="folder that relative paths refer to (default: the job's folder)")
    args = parser.parse_args(arguments)
    try:
        loaded = manifest.load(args.job)
    except manifest.ManifestError as error:
        print(error, file=sys.stderr)
        return ExitCode.CONFIG
    job = with_uid(loaded.job)
    token = next((os.environ[name] for name in TOKEN_VARIABLES if os.environ.get(name)), None)
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    options = RunOptions(
        job_uid=job.metadata.uid or "",
        attempt=args.attempt,
        host="0.0.0.0" if token else "127.0.0.1",
        progress_port=PROGRESS_PORT,
        metrics_port=METRICS_PORT,
        token=token,
        last_word=True,
        resolved=to_yaml(job),
    )
    folder = job_folder(job, loaded.base_dir)
    with stop_on_signals(lambda text: print(text, flush=True)) as stop:
        try:
            # A cluster's jobs say cpu or gpu: the operator has written it into the resolved job.
            if (device := job.spec.placement.accelerator) != "auto":
                await_devices(plan(job), device, job.spec.placement.timeout_seconds)
            return run(job, (args.files or loaded.base_dir).absolute(), folder, options, stop)
        except JobError as error:
            print(f"failed: {error}", file=sys.stderr)
            return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
