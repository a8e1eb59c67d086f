"""The timeline in the terminal: whose tokens ran when, one row per user."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from chunkattn.cli.scenario import ScenarioRun

PREFILL, DECODE, WAITING, ABSENT = "█", "▪", "·", " "
STYLES = {PREFILL: "cyan", DECODE: "green", WAITING: "red", ABSENT: ""}
_LABEL_WIDTH = 10


def timeline_text(runs: Sequence[tuple[str, ScenarioRun]], width: int) -> Text:
    """Draws runs under each other on one time scale.

    A cell is a slice of time: prompt tokens ran in it, an output token came, or the user waited for one.

    Args:
        runs: (title, run) pairs.
        width: columns to fill.
    """
    cells = max(width - _LABEL_WIDTH, 10)
    duration = max(run.steps[-1].end - run.steps[0].start for _, run in runs)
    text = Text(no_wrap=True, overflow="crop")
    for title, run in runs:
        text.append(f"{title}\n", style="bold")
        for user in run.requests:
            text.append(f"{user[: _LABEL_WIDTH - 1]:<{_LABEL_WIDTH}}")
            for cell in _row(run, user, cells, duration):
                text.append(cell, style=STYLES[cell])
            text.append("\n")
    axis = f"{'':<{_LABEL_WIDTH}}0 s{f'{duration:.1f} s':>{cells - 3}}\n"
    text.append(axis, style="dim")
    text.append(f"{'':<{_LABEL_WIDTH}}")
    for symbol, meaning in ((PREFILL, "prompt"), (DECODE, "token"), (WAITING, "waiting")):
        text.append(symbol, style=STYLES[symbol])
        text.append(f" {meaning}  ", style="dim")
    return text


def _row(run: ScenarioRun, user: str, cells: int, duration: float) -> list[str]:
    origin = run.steps[0].start

    def cell_of(time: float) -> int:
        return min(int((time - origin) / duration * cells), cells - 1)

    row = [ABSENT] * cells
    arrival = run.requests[user].arrival_time
    last = run.times()[user].token_times[-1]
    for i in range(cell_of(arrival), cell_of(last) + 1):
        row[i] = WAITING
    for step in run.steps:
        for chunk in step.batch.chunks:
            if chunk.request.request_id != user:
                continue
            if not chunk.is_decode:
                for i in range(cell_of(step.start), cell_of(step.end) + 1):
                    row[i] = PREFILL
            elif row[cell_of(step.end)] != PREFILL:
                row[cell_of(step.end)] = DECODE
    return row
