import os
import subprocess
from pathlib import Path

import pytest

from e2e.tools import debian
from e2e.tools.cachefolder import ToolsError
from e2e.tools.debian import FORBID, INSTALL, PROGRAMS, SHAPES, absent, ensure, missing, no_daemon_starts, states

PERMISSIVE = "#!/bin/sh\nexit 0\n"
FORBIDDING = "#!/bin/sh\n# the image's own\nexit 101\n"


def test_dpkg_lines_become_states() -> None:
    assert states("runc install ok installed\nconntrack unknown ok not-installed\n\n") == {
        "runc": "install ok installed",
        "conntrack": "unknown ok not-installed",
    }


@pytest.mark.parametrize(
    ("state", "program_found", "is_absent"),
    [
        ("install ok installed", False, False),
        ("hold ok installed", False, False),
        ("install ok triggers-pending", False, False),
        ("unknown ok not-installed", False, True),
        (None, False, True),
        (None, True, False),
        ("deinstall ok config-files", False, True),
        ("deinstall ok config-files", True, False),
        ("install ok half-configured", True, True),
        ("install ok unpacked", True, True),
        ("install reinstreq half-installed", True, True),
    ],
)
def test_a_package_is_absent_unless_installed_or_there_from_elsewhere(state: str | None, program_found: bool, is_absent: bool) -> None:
    known = {} if state is None else {"containerd": state}
    assert absent(["containerd"], known, {"containerd": program_found}) == (["containerd"] if is_absent else [])


def test_every_package_of_every_shape_has_a_program_to_look_for() -> None:
    named = {package for packages in SHAPES.values() for package in packages}
    assert named - {"busybox-static"} == set(PROGRAMS)
    assert absent(["busybox-static"], {}, {"busybox-static": debian._program_found("busybox-static")}) == ["busybox-static"]


def test_the_control_shape_needs_what_every_debian_has() -> None:
    assert SHAPES["control"] == ("iproute2", "util-linux")
    ensure(["util-linux"], "for a test", lambda line: pytest.fail(line))
    assert missing(["util-linux"]) == []


@pytest.mark.parametrize(
    ("user", "has_apt", "said"),
    [
        (1000, True, f"Debian packages needed for nodes; install them with: sudo {' '.join(INSTALL)} no-such-one"),
        (0, False, "Needed for nodes, not found, and no apt-get to install it: no-such-one (in Debian: no-such-one)."),
    ],
)
def test_who_may_not_install_is_told_the_command(
    user: int, has_apt: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if has_apt:
        apt = tmp_path / "apt-get"
        apt.write_text("#!/bin/sh\nexit 1\n")
        apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolsError) as refused:
        ensure(["no-such-one"], "for nodes", lambda line: pytest.fail(line))
    assert str(refused.value) == said


def policy_of(folder: Path, text: str | None) -> Path:
    policy = folder / "policy-rc.d"
    if text is not None:
        policy.write_text(text)
        policy.chmod(0o755)
    return policy


@pytest.mark.parametrize("text", [None, PERMISSIVE, FORBIDDING])
def test_daemons_are_forbidden_inside_and_the_machines_policy_is_back_afterwards(text: str | None, tmp_path: Path) -> None:
    policy = policy_of(tmp_path, text)

    def install_badly() -> None:
        with no_daemon_starts(policy):
            assert subprocess.run([policy, "containerd", "start"], check=False).returncode == 101
            raise RuntimeError("apt failed")

    with pytest.raises(RuntimeError, match="apt failed"):
        install_badly()
    assert (policy.read_text() if policy.exists() else None) == text
    assert [path.name for path in tmp_path.iterdir()] == ([] if text is None else ["policy-rc.d"])


@pytest.mark.parametrize("own", [None, PERMISSIVE])
def test_a_policy_that_a_killed_process_left_is_undone(own: str | None, tmp_path: Path) -> None:
    policy = policy_of(tmp_path, FORBID)
    if own is not None:
        (tmp_path / "policy-rc.d.rlhf-kube").write_text(own)
    with no_daemon_starts(policy):
        assert policy.read_text() == FORBID
    assert (policy.read_text() if policy.exists() else None) == own


def test_apt_is_asked_again_while_another_holds_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "apt-get"
    # Refuses twice with apt's own words, as it does while another apt updates the package lists.
    apt.write_text(
        f'#!/bin/sh\necho x >> {tmp_path}/calls\n[ $(wc -l < {tmp_path}/calls) -gt 2 ] && exit 0\n'
        'echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 42 (apt-get)" >&2\nexit 100\n'
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(debian.time, "sleep", lambda seconds: None)
    said: list[str] = []
    assert debian._apt(["apt-get", "update"], said.append)
    assert said == ["Another apt is at work; waiting for it."]
    assert (tmp_path / "calls").read_text() == "x\n" * 3
