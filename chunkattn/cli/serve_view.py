"""A replay while it runs: progress over all runs, and what the engine is doing now."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chunkattn.scheduler import Scheduler
from chunkattn.serving import StepRecord

_REDRAW_S = 0.2
_REPORT_S = 10.0  # between the lines of a long run where there is no terminal
_RECENT_STEPS = 60  # columns of the strip of steps
_SHADES = " ▁▂▃▄▅▆▇█"


class ServeView:
    """A progress bar and a live panel; where the output is no terminal, a line a run, and one every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._progress.add_task("", total=None)
        self._finished = 0
        self._drawn = self._began = self._reported = 0.0
        self._total, self._unit = 0, ""
        self._now: tuple[StepRecord, Scheduler] | None = None
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_STEPS)  # (prompt tokens, decodes)
        self._live = Live(console=console, get_renderable=self._render, auto_refresh=False, transient=True)

    def __enter__(self) -> ServeView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, title: str, total: int, unit: str) -> None:
        """A run begins.

        Args:
            title: what it is called.
            total: how much there is to do.
            unit: of what, such as "requests".
        """
        self._progress.reset(self._task, total=total, description=title)
        self._finished, self._now, self._total, self._unit = 0, None, total, unit
        self._began = self._reported = time.perf_counter()
        self._recent.clear()
        if not self._console.is_terminal:
            self.say(f"{title} ...")
        self._draw(force=True)

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(line, soft_wrap=True)

    def advance(self, done: int, total: int) -> None:
        """So much of the run is done."""
        self._progress.update(self._task, completed=done, total=total)
        self._finished, self._total = done, total
        self._report()
        self._draw()

    def on_step(self, step: StepRecord, scheduler: Scheduler) -> None:
        """An engine has run a step."""
        self._finished += len({request.request_id for request, _ in step.tokens if request.status.is_finished})
        if not self._console.is_terminal:
            self._report()
            return
        if time.perf_counter() - self._drawn < _REDRAW_S:
            return
        prompts = sum(c.num_tokens for c in step.batch.chunks if not c.is_decode)
        self._recent.append((prompts, sum(c.is_decode for c in step.batch.chunks)))
        self._now = (step, scheduler)
        self._progress.update(self._task, completed=self._finished)
        self._draw(force=True)

    def _report(self) -> None:
        now = time.perf_counter()
        if not self._console.is_terminal and now - self._reported >= _REPORT_S:
            self._reported = now
            self.say(f"  {self._finished:,} of {self._total:,} {self._unit} after {now - self._began:.0f} s")

    def _draw(self, *, force: bool = False) -> None:
        if self._console.is_terminal and (force or time.perf_counter() - self._drawn >= _REDRAW_S):
            self._drawn = time.perf_counter()
            self._live.update(self._render(), refresh=True)

    def _render(self) -> RenderableType:
        if self._now is None:
            return self._progress
        step, scheduler = self._now
        table = Table.grid(padding=(0, 1))
        table.add_column(style="bold", no_wrap=True, width=9)
        table.add_column(no_wrap=True)
        pages, free = scheduler.pool.num_pages, len(scheduler.pool)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=pages, completed=pages - free, width=30), f"{pages - free}/{pages} pages")
        table.add_row(
            "clock", f"{step.end:,.1f} s, step {step.batch.step:,} took {(step.end - step.start) * 1e3:.3g} ms"
        )
        table.add_row("requests", f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting")
        table.add_row("cache", bar)
        table.add_row("prompts", self._strip([prompt for prompt, _ in self._recent], "cyan"))
        table.add_row("decodes", self._strip([decodes for _, decodes in self._recent], "green"))
        return Group(self._progress, table)

    def _strip(self, values: list[int], style: str) -> Text:
        """Recent steps as bars, the newest at the right."""
        top = max([*values, 1])
        width = max(self._console.width - 24, 8)
        shown = values[-width:]
        bars = "".join(_SHADES[-(-value * (len(_SHADES) - 1) // top)] for value in shown)
        return Text.assemble((bars, style), f" {values[-1] if values else 0}")
