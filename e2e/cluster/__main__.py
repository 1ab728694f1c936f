"""`python -m e2e.cluster up|down|status|restart|exec|kubeconfig|logs`: test clusters by hand."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster.api import ApiError
from e2e.cluster.cluster import Cluster
from e2e.cluster.home import Home
from e2e.cluster.sandbox import SandboxError
from e2e.tools import prepare
from e2e.tools.cachefolder import ToolsError

MAX_DOWN_SECONDS = 86_400


def up(arguments: argparse.Namespace) -> int:
    """Start a cluster and say how to reach it."""
    cluster = Cluster.up(arguments.name, arguments.shape)
    if cluster.shape == "control":
        print("# No container runs in this shape: pods are only marked as ready, an operator's too.")
    print(f"export KUBECONFIG={cluster.admin_kubeconfig}")
    if not os.environ.get("RLHF_TOOLS_BIN"):
        tools = prepare(["kubectl", "helm"])
        print(f"export PATH={tools.binary('kubectl').parent}:{tools.binary('helm').parent}:$PATH")
    return 0


def down(arguments: argparse.Namespace) -> int:
    """End a cluster, also a broken one; with --all every one."""
    home = Home.default()
    for name in home.clusters() if arguments.all else [arguments.name]:
        started = time.monotonic()
        ran = Cluster.remove(name)
        if ran or not arguments.all:
            print(f"cluster {name} {'ended' if ran else 'was not running'} [{time.monotonic() - started:.1f} s]")
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Show the parts of a cluster; 1 when one has ended or the API server is not ready, 2 when there is no cluster."""
    cluster = Cluster.attach(arguments.name)
    ready = cluster.api.ready()
    print(f"cluster {cluster.name}, {cluster.shape} shape, {cluster.server}, API server {'ready' if ready else 'not ready'}")
    states = cluster.status()
    print(f"{'part':26} {'state':22} {'starts':>6} {'memory':>9} {'CPU':>9}")
    for state in states:
        memory, cpu = f"{state.resident_bytes / 2**20:.0f} MiB", f"{state.cpu_seconds:.1f} s"
        print(f"{state.name:26} {state.describe():22} {state.num_starts:6} {memory:>9} {cpu:>9}")
    return 0 if ready and all(state.running for state in states) else 1


def restart(arguments: argparse.Namespace) -> int:
    """Stop a part, leave it down, start it again."""
    started = time.monotonic()
    Cluster.attach(arguments.name).restart(arguments.part, arguments.down, kill=arguments.kill)
    print(f"{arguments.part} is up again [{time.monotonic() - started:.1f} s]")
    return 0


def execute(arguments: argparse.Namespace) -> int:
    """Run a command inside, in place of this process."""
    cluster = Cluster.attach(arguments.name)
    os.environ["KUBECONFIG"] = str(cluster.inside_kubeconfig)
    argv = cluster.sandbox.enter(arguments.command, Path.cwd())
    os.execvp(argv[0], argv)


def kubeconfig(arguments: argparse.Namespace) -> int:
    """Print the path of a kubeconfig."""
    cluster = Cluster.attach(arguments.name)
    if arguments.service_account is None:
        print(cluster.admin_kubeconfig)
    else:
        namespace, separator, account = arguments.service_account.partition("/")
        if not separator:
            raise SandboxError(f"--service-account {arguments.service_account}: write NAMESPACE/NAME, for example default/{namespace}")
        print(cluster.kubeconfig_for(account, namespace))
    return 0


def logs(arguments: argparse.Namespace) -> int:
    """Print, or follow, the log of a part; without a part the names of all logs. Works on a cluster that has ended, too."""
    folder = Home.default().cluster(arguments.name) / "logs"
    names = sorted(path.stem for path in folder.glob("*.log"))
    if not names:
        raise SandboxError(f"no cluster {arguments.name!r} has logs; there are: {', '.join(Home.default().clusters()) or 'none'}")
    if arguments.part is None:
        print("\n".join(str(folder / f"{name}.log") for name in names))
        return 0
    if arguments.part not in names:
        raise SandboxError(f"cluster {arguments.name}: no log of {arguments.part!r}; there are: {', '.join(names) or 'none'}")
    follow = ("-n", "20", "-F") if arguments.follow else ("-n", "+1")
    os.execvp("tail", ["tail", *follow, str(folder / f"{arguments.part}.log")])


def _seconds(text: str) -> float:
    """A time that can be slept: a part is down already when it is."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_DOWN_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: seconds from 0 to {MAX_DOWN_SECONDS}, for example 30")
    return seconds


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main_parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = main_parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=(function.__doc__ or "").splitlines()[0])
        added.add_argument("--name", default="main", help="which cluster (default: main)")
        added.set_defaults(function=function)
        return added

    command("up", up).add_argument(
        "--shape", choices=("control", "full"), default="full", help="control: no node, pods are marked (default: full)"
    )
    command("down", down).add_argument("--all", action="store_true", help="every cluster")
    command("status", status)
    added = command("restart", restart)
    added.add_argument("part", help="for example kube-apiserver")
    added.add_argument("--down", type=_seconds, default=0.0, metavar="SECONDS", help="how long it stays down (default: 0)")
    added.add_argument("--kill", action="store_true", help="SIGKILL, not SIGTERM")
    added = command("exec", execute)
    added.add_argument("command", nargs="+", help="for example: -- kubectl get nodes")
    added = command("kubeconfig", kubeconfig)
    added.add_argument("--service-account", metavar="NAMESPACE/NAME", help="with a token of this account, not the administrator's")
    added = command("logs", logs)
    added.add_argument("part", nargs="?")
    added.add_argument("--follow", action="store_true")
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; a fault of the cluster is one message and exit 2."""
    arguments = parser().parse_args(argv)
    try:
        result: int = arguments.function(arguments)
    except (SandboxError, ApiError, ToolsError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return result


if __name__ == "__main__":
    sys.exit(main())
