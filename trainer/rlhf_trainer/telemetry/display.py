"""What a person watches: a header, one line a step, a live line with the running phase, a summary.

On a terminal the steps form a table above a live line; anywhere else each step is one self-explaining line. A reader
that goes away (``| head``, a closed terminal) ends the display, not the training.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rlhf_trainer.telemetry.log import mask
from rlhf_trainer.telemetry.phases import Phases
from rlhf_trainer.telemetry.summary import Column, Metrics, Pace, columns, duration, evaluations, number

TITLE_EVERY = 25
BAR_WIDTH = 24
SLOW_PHASE_SECONDS = 60.0


class Display:
    """``with Display(...) as display`` from the first phase to the last.

    ``history`` are the metric rows of earlier attempts; an evaluation is compared with the first one there is.
    The step's duration is the time between two calls of ``step`` (for the first one: since ``begin``).
    """

    def __init__(
        self,
        phases: Phases,
        total_steps: int = 0,
        *,
        history: Iterable[Metrics] = (),
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        terminal: bool | None = None,
        width: int | None = None,
    ) -> None:
        stream = stream or sys.stdout
        found = _prepare(stream)
        is_terminal = found if terminal is None else terminal
        self._console = _LastingConsole(file=stream, force_terminal=is_terminal, width=width, highlight=False, soft_wrap=not is_terminal)
        self._terminal = is_terminal
        self._phases = phases
        self._clock = clock
        self._started = self._last = clock()
        self.pace = Pace(total_steps)
        self._done = 0
        self._rows = 0
        self._titles: tuple[str, ...] = ()
        self._first_evaluation: dict[tuple[str, str], float] = {}
        for row in history:
            self.remember(row)
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if self._terminal:
            self._live = Live(_LiveLine(self), console=self._console, refresh_per_second=8, transient=True, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def eta_seconds(self) -> float | None:
        return self.pace.eta_seconds

    def header(self, title: str, facts: Mapping[str, str]) -> None:
        """Describe the job: algorithm, model, device, folder and the like."""
        self._print(Text(title, style="bold"))
        self._facts(facts)
        self._print(Text())

    def begin(self, total_steps: int, done: int = 0) -> None:
        """Training starts now, after ``done`` steps of earlier attempts."""
        self.pace.total_steps = total_steps
        self._done = done
        self._last = self._clock()

    def step(self, step: int, metrics: Metrics) -> None:
        """``step`` steps are done."""
        now = self._clock()
        self.pace.add(step, now - self._last)
        seconds, self._last, self._done = now - self._last, now, step
        found = columns(metrics)
        if self._terminal:
            self._table_row(step, found, seconds)
        else:
            parts = [f"step {self._count(step)}", *(f"{column.plain} {column.text}" for column in found), f"{duration(seconds)}/step"]
            self._print(Text("  ".join([*parts, f"eta {self._eta()}"])))
        self.evaluation(step, metrics)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """A line for each evaluated data set among ``metrics``, with what it was at first."""
        self.remember(metrics)
        for dataset, values in evaluations(metrics).items():
            text = Text(f"eval {dataset} at step {step}: ", style="cyan")
            parts = []
            for name, value in values.items():
                first = self._first_evaluation[dataset, name]
                parts.append(f"{name} {number(value)}" + (f" (first {number(first)})" if first != value else ""))
            self._print(text.append(", ".join(parts), style="bold cyan"))

    def notice(self, text: str) -> None:
        """A line of its own, in the order of events."""
        self._print(Text(mask(text), style="yellow"))

    def summary(self, outcome: str, facts: Mapping[str, str], good: bool = True) -> None:
        """The end: ``outcome`` in one line, then facts (``summary.summarize`` and what the caller adds)."""
        self._print(Text())
        self._print(Text(f"{mask(outcome)}  ({duration(self._clock() - self._started)})", style="bold green" if good else "bold red"))
        self._facts(facts)

    def _facts(self, facts: Mapping[str, str]) -> None:
        label_width = max((len(label) for label in facts), default=0)
        for label, value in facts.items():
            self._print(Text(f"  {label:<{label_width}}  ", style="dim").append(mask(value), style="not dim"))

    def remember(self, metrics: Metrics) -> None:
        """Take the first evaluations from a row of an earlier attempt."""
        for dataset, values in evaluations(metrics).items():
            for name, value in values.items():
                self._first_evaluation.setdefault((dataset, name), value)

    def _table_row(self, step: int, found: list[Column], seconds: float) -> None:
        ends = [Column("s/step", "", (), duration(seconds), 1), Column("ETA", "", (), self._eta(), 0)]
        head = Column("step", "", (), self._count(step), 0)
        shown = self._fit([head, *found, *ends])
        titles = tuple(column.title for column in shown)
        if titles != self._titles or self._rows % TITLE_EVERY == 0:
            self._titles = titles
            self._print(Text("  ".join(f"{column.title:>{_width(column)}}" for column in shown), style="dim"))
        self._rows += 1
        line = Text("  ").join(Text(f"{column.text:>{_width(column)}}", style=_style(column)) for column in shown)
        self._print(line)

    def _fit(self, found: list[Column]) -> list[Column]:
        """Leave out the least important columns until the line fits."""
        kept = list(found)
        while sum(_width(column) + 2 for column in kept) - 2 > self._console.width and any(column.rank for column in kept):
            kept.remove(max(reversed(kept), key=lambda column: column.rank))
        return kept

    def _count(self, step: int) -> str:
        total = str(self.pace.total_steps)
        return f"{step:>{len(total)}}/{total}" if self.pace.total_steps else str(step)

    def _eta(self) -> str:
        eta = self.pace.eta_seconds
        return "?" if eta is None else duration(eta)

    def _print(self, text: Text) -> None:
        self._console.print(text, no_wrap=self._terminal is False, overflow="ignore" if not self._terminal else "fold", crop=False)

    def live_parts(self) -> tuple[str, float, int, int, str]:
        """Phase, its seconds, steps done, all steps, ETA: what the live line shows now."""
        return self._phases.current, self._phases.elapsed_seconds, self._done, self.pace.total_steps, self._eta()


class _LastingConsole(Console):
    """Falls silent for good when its stream breaks, where rich ends the program."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            super().__exit__(kind, error, trace)
        except BlockingIOError:
            # A reader that lags behind a non-blocking pipe: these lines are lost, later ones are not.
            self.quiet = True
            with self:
                pass
            self.quiet = False
        except (OSError, ValueError):
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # What the stream still holds, and what others print, would fail again, at the latest when the interpreter ends.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


def _prepare(stream: TextIO | None) -> bool:
    """Whether ``stream`` is a terminal; None: the process was started without one. Characters it lacks become ``?``."""
    try:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


class _LiveLine:
    """Drawn anew several times a second, in rich's own thread."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._spinner = Spinner("dots", style="cyan")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        phase, seconds, done, total, eta = self._display.live_parts()
        grid = Table.grid(padding=(0, 1))
        cells: list[Spinner | Text | ProgressBar] = [self._spinner, Text(phase, style="bold cyan")]
        cells.append(Text(duration(seconds), style="yellow" if seconds > SLOW_PHASE_SECONDS else "dim"))
        if total:
            cells += [ProgressBar(total, done, width=BAR_WIDTH), Text(f"{done}/{total}"), Text(f"ETA {eta}", style="dim")]
        for _ in cells:
            grid.add_column(no_wrap=True)
        grid.add_row(*cells)
        yield grid


def _width(column: Column) -> int:
    # Room for the widest usual value, so that the table does not jitter from row to row.
    return max(len(column.title), len(column.text), 7)


def _style(column: Column) -> str:
    return "bold green" if column.title == "reward" else "dim" if column.title in ("ETA", "s/step") else ""
