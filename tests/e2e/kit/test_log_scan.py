from pathlib import Path

import pytest

from e2e.kit.log_scan import LogScan, unexpected


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ('E1129 10:00:00.000000 1 reflector.go:1] "Failed to watch"', True),
        ("2026-11-29T10:00:00Z\tERROR\tcontrollers\tReconciler error", True),
        ('{"level": "error", "event": "reconcile_failed"}', True),
        ('pods "a" is forbidden: User "x" cannot list', True),
        ("Traceback (most recent call last):", True),
        ("I1129 10:00:00.000000 1 controller.go:1] no ERRORS here", False),
        ('ERROR Operation cannot be fulfilled on rayclusters.ray.io "a": the object has been modified', False),
        ('{"level": "info", "event": "errors_total"}', False),
    ],
)
def test_an_error_is_told_from_the_noise_of_a_healthy_cluster(line: str, reported: bool) -> None:
    assert unexpected([line]) == ([line] if reported else [])


def test_only_lines_since_the_last_look_count(tmp_path: Path) -> None:
    log = tmp_path / "kuberay.log"
    log.write_text("ERROR old\n")
    scan = LogScan({"kuberay": log})
    scan.skip()
    with log.open("a") as file:
        file.write("ERROR new\n")
    assert scan.new_errors() == ["kuberay: ERROR new"]
    assert scan.new_errors() == []


def test_a_log_that_began_anew_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "kuberay.log"
    log.write_text("fine\n" * 100)
    scan = LogScan({"kuberay": log})
    scan.skip()
    log.write_text("ERROR after the restart\n")
    assert scan.new_errors() == ["kuberay: ERROR after the restart"]


def test_a_test_can_allow_what_it_provokes(tmp_path: Path) -> None:
    assert unexpected(["ERROR connection refused", "ERROR other"], allowed=["connection refused"]) == ["ERROR other"]
