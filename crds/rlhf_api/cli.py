"""The ``rlhf`` command.

Other packages add commands by the entry-point group ``rlhf.commands``, and checks by ``rlhf.dry_runs`` and ``rlhf.cluster_checks``.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

from rlhf_api import __version__, crd, failures, files, manifest, reference, rules
from rlhf_api.exit_codes import ExitCode
from rlhf_api.resolve import to_yaml
from rlhf_api.spec import RLHFJob
from rlhf_api.violations import Violation

COMMANDS = "rlhf.commands"
DRY_RUNS = "rlhf.dry_runs"
CLUSTER_CHECKS = "rlhf.cluster_checks"

DryRun = Callable[[RLHFJob, Path], list[Violation]]
ClusterCheck = Callable[[RLHFJob], list[Violation]]
"""Faults that only whoever builds the pods can find, of a job that has passed the rules of clusters."""


class Command(Protocol):
    """What an entry point of ``rlhf.commands`` loads to."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def execute(self, args: argparse.Namespace) -> int: ...


class Validate:
    """Check manifests, and their data and reward code where they can be reached; every fault is shown at once."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="manifest with one RLHFJob; ConfigMaps beside it are its files")
        add_set_argument(parser)
        parser.add_argument("--no-dry-run", action="store_true", help="do not read data or call reward code")
        parser.add_argument(
            "--cluster",
            action="store_true",
            help="check also what a job needs on a cluster; what lies on its volumes is not looked for here",
        )
        parser.add_argument("--print", action="store_true", help="print the resolved job: preset and defaults filled in")

    def execute(self, args: argparse.Namespace) -> int:
        return max(self._judge(file, args) for file in args.files)

    def _judge(self, file: str, args: argparse.Namespace) -> int:
        try:
            loaded = manifest.load(file, args.set)
        except manifest.ManifestError as error:
            return refuse(file, error.violations)
        for warning in loaded.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        for warning in files.hub_ids_beside(loaded.job, loaded.base_dir) if args.cluster else ():
            print(f"warning: {loaded.locate(warning)}", file=sys.stderr)
        faults = [loaded.locate(fault) for fault in check_cluster(loaded.job)] if args.cluster else []
        tried = [] if args.no_dry_run else _dry_run(loaded)
        for fault in tried:
            volume = _volume_of(loaded.job, fault) if args.cluster else None
            if volume is None:
                faults.append(fault)
            else:
                print(f"note: {fault.field} is not checked: {fault.value} lies on the volume {volume}, which is not here", file=sys.stderr)
        if faults:
            return refuse(file, faults)
        if args.print and len(args.files) > 1:
            print("---")
        print(to_yaml(loaded.job) if args.print else f"{file} is valid.")
        return ExitCode.DONE


class PrintCrd:
    """Write the CustomResourceDefinition of RLHFJob."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_output_argument(parser)

    def execute(self, args: argparse.Namespace) -> int:
        return _write(crd.text(), args.output)


class PrintReference:
    """Write the reference of all fields, presets and rules (Markdown)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_output_argument(parser)

    def execute(self, args: argparse.Namespace) -> int:
        return _write(reference.text(), args.output)


class PrintReasons:
    """Write the list of all reasons of conditions and failures, with what to do (Markdown)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_output_argument(parser)

    def execute(self, args: argparse.Namespace) -> int:
        return _write(failures.text(), args.output)


class PrintFiles:
    """Write the ConfigMap that holds the files a manifest names by relative paths, for a cluster."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="manifest with one RLHFJob")
        add_set_argument(parser)
        _add_output_argument(parser)

    def execute(self, args: argparse.Namespace) -> int:
        try:
            loaded = manifest.load(args.file, args.set)
            with tempfile.TemporaryDirectory(prefix="rlhf-files-") as scratch:
                text = files.text(loaded.job, loaded.materialize(Path(scratch, "files")))
        except manifest.ManifestError as error:
            return refuse(args.file, error.violations)
        except files.FilesError as error:
            return refuse(args.file, [loaded.locate(error.violation)])
        return _write(text, args.output)


BUILT_IN: dict[str, Command] = {
    "validate": Validate(),
    "files": PrintFiles(),
    "crd": PrintCrd(),
    "reference": PrintReference(),
    "reasons": PrintReasons(),
}


def add_set_argument(parser: argparse.ArgumentParser) -> None:
    """``--set``, the same for every command that reads a manifest."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="override a field, as in --set rl.kl.coef=0 or --set data.datasets[0].path=train.jsonl; the value is YAML",
    )


def refuse(file: str, violations: Sequence[Violation]) -> int:
    """Prints every fault and returns the exit code of a bad configuration."""
    for violation in violations:
        print(violation, file=sys.stderr)
    count = len(violations)
    print(f"{file}: {count} fault{'' if count == 1 else 's'}.", file=sys.stderr)
    return ExitCode.CONFIG


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A locale without UTF-8 would end the command at the first other character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    arguments = list(sys.argv[1:] if argv is None else argv)
    joined = {point.name: point for point in entry_points(group=COMMANDS)}
    parser = argparse.ArgumentParser(prog="rlhf", description="Train language models from one RLHFJob manifest.")
    parser.add_argument("--version", action="version", version=f"rlhf {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in BUILT_IN.items():
        command.add_arguments(commands.add_parser(name, help=command.__doc__, description=command.__doc__))
    # Loading an entry point takes time, so only what was asked for is loaded: a command, or the descriptions of all.
    for_all = not arguments or arguments[0].startswith("-")
    chosen = joined.get(arguments[0]) if arguments else None
    loaded = _load(chosen) if chosen is not None else None
    for name, point in joined.items():
        sub = commands.add_parser(name, help=_described(point) if for_all else None)
        if point is chosen and loaded is not None:
            sub.description = loaded.__doc__
            loaded.add_arguments(sub)
    args = parser.parse_args(arguments)
    command = loaded if loaded is not None else BUILT_IN[args.command]
    return int(command.execute(args))


def _described(point: EntryPoint) -> str:
    try:
        return str(point.load().__doc__)
    except ModuleNotFoundError as error:
        return f"Needs the module {error.name}, which is not installed."


def _load(point: EntryPoint) -> Command:
    try:
        loaded: Command = point.load()
    except ModuleNotFoundError as error:
        raise SystemExit(f"rlhf {point.name} needs the module {error.name}: install the extra that brings it (rlhf[trainer])") from None
    return loaded


def check_cluster(job: RLHFJob) -> list[Violation]:
    """All that an operator would say to ``job`` before it creates anything: the rules, then what the pods are built of."""
    faults = rules.check_cluster(job)
    for point in entry_points(group=CLUSTER_CHECKS) if not faults else ():
        try:
            check: ClusterCheck = point.load()
        except ModuleNotFoundError as error:
            print(f"note: cluster.podOverlay is not checked: the module {error.name} is not installed", file=sys.stderr)
            continue
        faults += check(job)
    return faults


def _dry_run(loaded: manifest.LoadedManifest) -> list[Violation]:
    faults: list[Violation] = []
    with tempfile.TemporaryDirectory(prefix="rlhf-validate-") as scratch:
        base_dir = loaded.materialize(Path(scratch))
        for point in entry_points(group=DRY_RUNS):
            try:
                dry_run: DryRun = point.load()
            except ModuleNotFoundError as error:
                print(f"note: data and reward code are not checked: the module {error.name} is not installed", file=sys.stderr)
                continue
            faults += [loaded.locate(fault) for fault in dry_run(loaded.job, base_dir)]
    return faults


def _volume_of(job: RLHFJob, fault: Violation) -> str | None:
    """The volume of the cluster that holds the file of ``fault``, where this machine does not have it."""
    path = fault.value if isinstance(fault.value, str) else ""
    if not path.startswith("/") or Path(path).exists():
        return None
    return next((each.name for each in job.spec.cluster.volumes if path.startswith(f"{each.mount_path}/")), None)


def _add_output_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help="write there instead of printing")


def _write(text: str, output: Path | None) -> int:
    if output is None:
        print(text, end="")
        return ExitCode.DONE
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        rule = f"the file can be written ({error.strerror})"
        return refuse(str(output), [Violation("--output", str(output), rule, "a file in a folder that is there")])
    return ExitCode.DONE
