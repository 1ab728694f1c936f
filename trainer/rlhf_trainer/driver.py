"""The single controller: from a resolved job to a trained model. The same code on a laptop and on a cluster.

Stages, each under its name in /progress: preflight (data and reward code, before any model is loaded), placement, load,
the training loop, export.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import ray

from rlhf_api import rules
from rlhf_api.exit_codes import ExitCode
from rlhf_api.plan import PlacementPlan, plan
from rlhf_api.spec import RLHFJob
from rlhf_trainer import preflight
from rlhf_trainer.algorithms import kl as kl_control
from rlhf_trainer.algorithms import schedule
from rlhf_trainer.checkpoint.fingerprint import fingerprint
from rlhf_trainer.checkpoint.store import Checkpoint, CheckpointStore
from rlhf_trainer.cluster import Cluster, choose_device, open_cluster
from rlhf_trainer.data.loader import PromptLoader
from rlhf_trainer.data.prepare import PreparedData, prepare
from rlhf_trainer.errors import ConfigError, JobError, StopRequested
from rlhf_trainer.loops import rl
from rlhf_trainer.loops.assembly import assemble
from rlhf_trainer.models import precision
from rlhf_trainer.models.load import load_tokenizer
from rlhf_trainer.reporting import Reporter
from rlhf_trainer.rewards.pipeline import RewardPipeline
from rlhf_trainer.stop import StopFlag
from rlhf_trainer.telemetry import log


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is not in the manifest: who runs the job and where it is watched."""

    job_uid: str
    attempt: int | None = None
    """None: the stored attempt + 1 (local runs)."""
    fresh: bool = False
    """Start anew; the job's former folder is kept under another name."""
    host: str = "127.0.0.1"
    progress_port: int | None = None
    metrics_port: int | None = None
    token: str | None = None
    last_word: bool = False
    """End stdout with the final report, see `rlhf_api.progress.LAST_WORD`."""
    resolved: str = ""
    """The resolved manifest, kept as ``job.yaml`` in the job's folder: nobody has to search for the effective value."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """Length of the whole job, known once the data are."""

    total_steps: int
    total_updates: int


def job_folder(job: RLHFJob, manifest_dir: Path) -> Path:
    """``<root>/<namespace>/<job>``; a relative ``checkpoint.path`` refers to the manifest's folder, the default root to the current one."""
    path = job.spec.checkpoint.path
    root = Path("runs") if path is None else manifest_dir / Path(path).expanduser()
    return (root / job.metadata.namespace / job.metadata.name).absolute()


def set_aside(folder: Path) -> Path | None:
    """Rename a former job folder; nothing is deleted."""
    if not folder.exists():
        return None
    stamp = f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stamp if again == 0 else f"{stamp}-{again}" for again in itertools.count())
    target = next(path for name in names if not (path := folder.with_name(name)).exists())
    folder.rename(target)
    return target


def run(job: RLHFJob, base_dir: Path, folder: Path, options: RunOptions, stop: StopFlag) -> ExitCode:
    """Run ``job`` (resolved and checked by the rules) on the Ray cluster this process is connected to.

    ``base_dir``: what relative paths of the manifest refer to; ``folder``: the job's own, from ``job_folder``. Once the
    folder is claimed every failure is reported, logged with its traceback, and becomes an exit code.
    """
    former = set_aside(folder) if options.fresh else None
    store = _store(job, folder, options)
    attempt = store.claim()
    (folder / "job.yaml").write_text(options.resolved)
    events = log.setup(folder, job=job.metadata.name, attempt=attempt)
    title = f"{job.metadata.name} ({job.spec.rl.algorithm})"
    tensorboard, last_word = job.spec.logging.tensorboard, options.last_word
    with Reporter(folder, events, options.job_uid, attempt, tensorboard=tensorboard, title=title, last_word=last_word) as report:
        stop.notice = report.display.notice
        if former is not None:
            report.display.notice(f"the former run was set aside: {former}")
        try:
            return _run(job, base_dir, options, store, report, stop)
        except StopRequested as request:
            stop.ended = True
            events.event("stopped", reason=str(request))
            report.summary(str(request), {"folder": str(folder)})
            return request.exit_code
        except KeyboardInterrupt:
            stop.ended = True
            events.event("interrupted")
            report.bad_end("interrupted; the same command continues from the last checkpoint", {"folder": str(folder)})
            return ExitCode.STOPPED
        except Exception as error:
            stop.ended = True
            code = error.exit_code if isinstance(error, JobError) else ExitCode.USER
            stage = report.failed(error, code)
            report.bad_end(f"failed in {stage}: {_text(error)}", {"log": str(folder / log.FILE_NAME)})
            return code
        except BaseException as error:
            # A library that calls sys.exit must not end a job without a word.
            report.failed(error, ExitCode.USER)
            raise


def _run(job: RLHFJob, base_dir: Path, options: RunOptions, store: CheckpointStore, report: Reporter, stop: StopFlag) -> ExitCode:
    spec = job.spec
    ports = report.serve(options.token, options.host, options.progress_port, options.metrics_port)
    with report.phase("preflight"):
        faults = rules.check_world(job, int(ray.cluster_resources().get("GPU", 0)))
        if faults:
            raise ConfigError("\n".join(map(str, faults)))
        preflight.check(job, base_dir)
        tokenizer = load_tokenizer(spec.models.actor, base_dir)
        prepared = prepare(job, base_dir, tokenizer)
        loader = PromptLoader(prepared.prompts, spec.data, spec.training.seed, spec.training.epochs)
        horizon = horizon_of(job, loader)
        checkpoint = store.latest()
        for step, reason in store.damaged.items():
            report.display.notice(f"the checkpoint of step {step} is damaged and not used: {reason}")
        if checkpoint is not None:
            store.check_fingerprint(checkpoint)
            report.found(checkpoint)
            store.check_data(checkpoint, loader.fingerprint())
    final = store.job_dir / "final"
    if checkpoint is not None and checkpoint.step >= horizon.total_steps and final.exists():
        report.exported(checkpoint.step, final)
        report.summary(f"already done: {checkpoint.step} of {horizon.total_steps} steps", {"model": str(final)})
        return ExitCode.DONE
    placement = plan(job)
    with ExitStack() as stack:
        with report.phase("placement"):
            cluster = stack.enter_context(open_cluster(job, base_dir, placement, store.job_dir))
        report.display.header(
            f"RLHFJob {job.metadata.namespace}/{job.metadata.name}",
            header(job, placement, cluster, horizon, prepared, store, ports.progress),
        )
        with report.phase("load"):
            cluster.load(horizon.total_updates, checkpoint.path if checkpoint is not None else None)
            steps_and_updates = (horizon.total_steps, horizon.total_updates)
            parts = stack.enter_context(assemble(job, base_dir, tokenizer, cluster, loader, store, report, stop, steps_and_updates))
        state = start_state(job, horizon, loader, parts.rewards, store, checkpoint)
        report.resume(state.step, checkpoint)
        report.begin(horizon.total_steps, horizon.total_updates, state.step, state.updates, prepared.counts)
        if checkpoint is not None:
            report.display.notice(f"continuing after step {state.step} from {checkpoint.path}")
        rl.train(parts.loop, state, parts.metrics_of)
        facts = {"folder": str(store.job_dir)}
        if spec.checkpoint.export_hugging_face:
            with report.phase("export"):
                exported = cluster.export(store)
            report.exported(horizon.total_steps, exported)
            facts["model"] = str(exported)
    stop.ended = True
    report.summary("done", {**facts, "curve": str(store.job_dir / "reward.png")})
    return ExitCode.DONE


def horizon_of(job: RLHFJob, loader: PromptLoader) -> Horizon:
    spec, rollout = job.spec, job.spec.rl.rollout
    training = spec.training
    steps = schedule.total_steps(loader.draws_per_epoch, rollout.prompts_per_step, training.epochs, training.max_steps)
    updates = schedule.total_updates(
        loader.draws_per_epoch,
        prompts_per_step=rollout.prompts_per_step,
        samples_per_prompt=rollout.samples_per_prompt,
        global_batch_size=training.global_batch_size,
        epochs=training.epochs,
        update_epochs=spec.rl.update_epochs,
        max_steps=training.max_steps,
    )
    return Horizon(steps, updates)


def start_state(
    job: RLHFJob, horizon: Horizon, loader: PromptLoader, rewards: RewardPipeline, store: CheckpointStore, checkpoint: Checkpoint | None
) -> rl.RlState:
    """Where the loop begins: at zero, or where the checkpoint left it."""
    if checkpoint is None:
        return rl.RlState(0, horizon.total_steps, 0, kl_control.controller(job.spec.rl.kl))
    saved = store.load_state(checkpoint)
    loader.load_state_dict(saved["prompts"])
    rewards.load_state_dict(saved["rewards"])
    kl = kl_control.controller(job.spec.rl.kl, saved["kl"])
    return rl.RlState(saved["step"], horizon.total_steps, saved["updates"], kl)


def header(
    job: RLHFJob, placement: PlacementPlan, cluster: Cluster, horizon: Horizon, prepared: PreparedData, store: CheckpointStore, port: int
) -> Mapping[str, str]:
    spec, rollout = job.spec, job.spec.rl.rollout
    groups = ", ".join(f"{group.name} x {group.ranks}" for group in placement.groups)
    filtered = {key: count for key, count in prepared.counts.items() if key not in ("rows", "prompts") and count}
    kl = f"KL {spec.rl.kl.coef:g} in the {spec.rl.kl.placement}" if spec.rl.kl.coef else "no KL"
    batch = f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples"
    engines = f"{placement.engines} vLLM engine" + ("s" if placement.engines > 1 else "")
    return {
        "algorithm": f"{spec.rl.algorithm} ({spec.rl.advantage.estimator}, {kl})",
        "model": spec.models.actor.path,
        "data": ", ".join(
            [f"{prepared.counts['prompts']} prompts", *(f"{count} {key.replace('_', ' ')}" for key, count in filtered.items())]
        ),
        "batch": f"{batch}, {spec.training.global_batch_size} rollouts an update",
        "length": f"{horizon.total_steps} steps, {horizon.total_updates} updates",
        "devices": f"{cluster.device}, {cluster.dtype_name}; workers {groups}; {engines} x {placement.tensor_parallel}",
        "folder": f"{store.job_dir} (attempt {store.attempt})",
        "progress": f"http://127.0.0.1:{port}/progress",
    }


def _store(job: RLHFJob, folder: Path, options: RunOptions) -> CheckpointStore:
    device = choose_device(job.spec.placement.accelerator, ray.cluster_resources())
    wanted = job.spec.training.precision
    # What auto becomes on a GPU is the workers' to find out; their saved layout holds it and refuses another.
    dtype_name = wanted if device == "gpu" else precision.name(precision.choose(wanted, "cpu"))
    return CheckpointStore(
        folder,
        job_uid=options.job_uid,
        attempt=options.attempt,
        fingerprint=fingerprint(job, dtype_name),
        keep_last=job.spec.checkpoint.keep_last,
        world_size=job.spec.placement.actor.total,
        zero_stage=job.spec.training.deepspeed.zero_stage,
    )


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, JobError) else f"{type(error).__name__}: {error}"
