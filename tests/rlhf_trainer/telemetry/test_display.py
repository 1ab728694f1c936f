import io
import os
import pty
import subprocess
import sys

import pytest

from rlhf_trainer.telemetry.display import Display
from rlhf_trainer.telemetry.phases import Phases
from rlhf_trainer.telemetry.summary import Pace, better, duration, number, percent, summarize

METRICS = {
    "rollout/reward_mean": 0.612,
    "rollout/score_mean": 0.7,
    "rollout/kl": 0.0041,
    "actor/entropy": 1.32,
    "rollout/response_length_mean": 118.4,
    "rollout/truncated_share": 0.03,
    "rollout/logprob_gap_abs_mean": 1.2e-5,
    "perf/rollout_tokens_per_second": 512.3,
    "perf/train_tokens_per_second": 1893.0,
}


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(terminal: bool = False, width: int = 200, metrics=METRICS, total: int = 60) -> list[str]:
    stream, clock = io.StringIO(), FakeClock()
    display = Display(Phases(), stream=stream, clock=clock, terminal=terminal, width=width)
    display.begin(total)
    clock.now += 8.0
    display.step(1, metrics)
    return stream.getvalue().splitlines()


def test_plain_step_is_one_line_that_explains_itself():
    assert shown() == [
        "step  1/60  reward 0.612  score 0.700  kl 0.0041  entropy 1.320  length 118  truncated 3%  gap 1.2e-05  "
        "tok/s gen/train 512/1893  8.0s/step  eta 7m52s"
    ]


def test_plain_lines_are_never_wrapped():
    assert len(shown(width=40)) == 1


def test_unknown_values_are_left_out():
    (line,) = shown(metrics={"rollout/reward_mean": None, "rollout/kl": 0.5})
    assert line == "step  1/60  kl 0.500  8.0s/step  eta 7m52s"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_table_fits_the_terminal_and_keeps_what_matters(width):
    lines = shown(terminal=True, width=width)
    assert len(lines) == 2
    plain = [line.replace("\x1b[2m", "").replace("\x1b[1;32m", "").replace("\x1b[0m", "") for line in lines]
    assert all(len(line) <= width for line in plain)
    assert "reward" in plain[0]
    assert "ETA" in plain[0]
    assert "0.612" in plain[1]


def test_terminal_shows_the_running_phase():
    stream, phases = io.StringIO(), Phases()
    with Display(phases, stream=stream, terminal=True, width=100) as display:
        display.begin(10, done=3)
        with phases("rollout"):
            display._live.refresh()
    assert "rollout" in stream.getvalue()
    assert "3/10" in stream.getvalue()


def test_evaluation_is_compared_with_the_first_one():
    stream = io.StringIO()
    display = Display(Phases(), stream=stream, history=[{"step": 0, "eval/math/score_mean": 0.47}])
    display.evaluation(20, {"eval/math/score_mean": 0.8})
    assert stream.getvalue() == "eval math at step 20: score_mean 0.800 (first 0.470)\n"


def test_header_and_summary_align_their_labels():
    stream = io.StringIO()
    display = Display(Phases(), stream=stream, clock=FakeClock())
    display.header("default/job  grpo", {"model": "m", "device": "cpu, fp32, 1 rank"})
    display.summary("done: 60 steps", {"reward": "0.1 → 0.9"})
    assert stream.getvalue().splitlines() == [
        "default/job  grpo",
        "  model   m",
        "  device  cpu, fp32, 1 rank",
        "",
        "",
        "done: 60 steps  (0s)",
        "  reward  0.1 → 0.9",
    ]


def test_rc13_notices_mask_credentials():
    stream = io.StringIO()
    Display(Phases(), stream=stream).notice("no answer from https://user:secret@host/path")
    assert stream.getvalue() == "no answer from https://***@host/path\n"


def test_markup_in_a_path_is_shown_as_it_is():
    stream = io.StringIO()
    Display(Phases(), stream=stream).header("t", {"folder": "/a/[red]b"})
    assert "/a/[red]b" in stream.getvalue()


TRAINING = """
from rlhf_trainer.telemetry.display import Display
from rlhf_trainer.telemetry.phases import Phases
import sys, time
with Display(Phases(), 3, terminal="terminal" in sys.argv) as display:
    display.header("t", {"folder": "/a \u2192 b"})
    input()
    for step in range(3):
        display.step(step + 1, {"rollout/reward_mean": 0.5})
        time.sleep(0.2)
    print("others print too", flush=True)
    display.summary("done", {})
print("trained", file=sys.stderr)
"""


def trained(*arguments: str, stdout: int | None, close=lambda: None, encoding: str = "utf-8") -> None:
    """Three steps in a process of their own, after ``close`` broke its stdout."""
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", TRAINING, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
    if stdout is not None:
        os.close(stdout)
    close()
    _, said = process.communicate("go\n", timeout=60)
    assert said == "trained\n"
    assert process.returncode == 0


@pytest.mark.parametrize("arguments", [(), ("terminal",)], ids=["plain", "live"])
def test_training_goes_on_when_the_reader_of_a_pipe_is_gone(arguments):
    reader, writer = os.pipe()
    trained(*arguments, stdout=writer, close=lambda: os.close(reader))


@pytest.mark.parametrize("arguments", [(), ("terminal",)], ids=["plain", "live"])
def test_training_goes_on_when_the_terminal_is_gone(arguments):
    controller, terminal = pty.openpty()
    trained(*arguments, stdout=terminal, close=lambda: os.close(controller))


def test_training_goes_on_when_the_disk_of_the_log_is_full():
    trained(stdout=os.open("/dev/full", os.O_WRONLY))


def test_characters_that_the_terminal_lacks_do_not_end_training():
    reader, writer = os.pipe()
    trained(stdout=writer, encoding="ascii")
    with open(reader) as stream:
        assert "/a ? b" in stream.read()


def test_closed_and_missing_streams_are_silent(monkeypatch):
    stream = open(os.devnull, "w")  # noqa: SIM115
    stream.close()
    Display(Phases(), stream=stream).notice("x")
    monkeypatch.setattr(sys, "stdout", None)
    with Display(Phases()) as display:
        display.notice("x")


def test_a_reader_that_lags_loses_lines_but_not_the_display():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    display = Display(Phases(), stream=open(writer, "w"))  # noqa: SIM115
    for _ in range(300):
        display.notice("x" * 1000)
    while len(os.read(reader, 1 << 16)) == 1 << 16:
        pass
    display.notice("the last line")
    assert b"the last line" in os.read(reader, 1 << 16)
    os.close(reader)
    display.notice("y")


def test_pace_is_the_mean_of_recent_steps():
    pace = Pace(100)
    assert pace.eta_seconds is None
    pace.add(1, 1000.0)
    for step in range(2, 22):
        pace.add(step, 2.0)
    assert pace.seconds_per_step == 2.0
    assert pace.eta_seconds == (100 - 21) * 2.0


def test_formats():
    assert [number(x) for x in (0, 0.612, -0.0041, 1.2e-5)] == ["0", "0.612", "-0.0041", "1.2e-05"]
    assert [number(x) for x in (12.34, 1893.2, 0.0001)] == ["12.3", "1893", "0.00010"]
    assert [percent(x) for x in (0, 0.004, 0.031, 1)] == ["0%", "<1%", "3%", "100%"]
    assert [duration(x) for x in (8.34, 59.7, 372, 7860, 273_600)] == ["8.3s", "1m00s", "6m12s", "2h11m", "3d04h"]


def test_summary_speaks_about_the_whole_run():
    rows = [{"step": 0, "eval/a/score_mean": 0.4, "eval/a/pass@1": 0.3}]
    rows += [{"step": step, "rollout/reward_mean": step / 20, "timing_s/rollout": 3.0, "timing_s/update": 1.0} for step in range(1, 21)]
    rows[10]["eval/a/score_mean"] = 0.9
    rows[20]["eval/a/score_mean"] = 0.8
    facts = summarize(rows)
    assert facts["reward"] == "0.075 → 0.975  (mean of the first and last 2 steps)"
    assert facts["eval a"] == "score_mean 0.400 → 0.800  (best 0.900 at step 10)"
    assert facts["time"] == "rollout 75%, update 25%"
    assert summarize([]) == {}


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([{"step": 0, "rollout/reward_mean": 0.5}], None),
        ([{"step": 0, "eval/a/score_mean": None}], None),
        ([{"step": 0, "eval/a/pass@1": 0.2, "eval/a/score_mean": 0.1}], (0, "eval/a/score_mean", 0.1)),
        ([{"step": 0, "eval/a/score_mean": 0.1}, {"step": 5, "eval/a/score_mean": 0.1}], (0, "eval/a/score_mean", 0.1)),
        ([{"step": 0, "eval/a/score_mean": 0.1}, {"step": 5, "eval/a/pass@1": 0.9}], (0, "eval/a/score_mean", 0.1)),
        ([{"step": 0, "eval/a/score_mean": -0.1}, {"step": 5, "eval/a/score_mean": 0.0}], (5, "eval/a/score_mean", 0.0)),
    ],
)
def test_best_evaluation_is_the_first_highest_of_one_metric(rows, best):
    found = None
    for row in rows:
        found = better(found, row)
    assert (None if found is None else (found.step, found.metric, found.value)) == best
