"""The timeline as a picture: both runs on one time scale, the longest stall marked."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from chunkattn.atomic_file import require_writable, write_atomically
from chunkattn.cli.scenario import ScenarioRun
from chunkattn.extras import require

PREFILL, DECODE, TOKEN, STALL = "#1f77b4", "#dcf1d6", "#1a7a32", "#d62728"


def save_timeline(runs: Sequence[tuple[str, ScenarioRun]], path: Path) -> None:
    """Draws the runs under each other and writes the picture.

    Args:
        runs: (title, run) pairs.
        path: where to; the suffix chooses the format.

    Raises:
        OSError: it cannot be written.
    """
    require("matplotlib", extra="demo", purpose="the timeline picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sum(len(run.requests) for _, run in runs)
    figure = Figure(figsize=(12, 1.6 + 0.46 * rows + 0.5 * len(runs)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, run) in zip(axes, runs, strict=True):
        _draw(axis, title, run)
    axes[-1].set_xlabel("seconds")
    _legend(axes[0])
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format=_format_of(path))
    write_atomically(path, buffer.getvalue())


def require_picture(path: Path) -> None:
    """For before the runs: a picture can be written there.

    Raises:
        ValueError: a suffix that names no format.
        OSError: the file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", extra="demo", purpose="the timeline picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if _format_of(path) not in known:
        raise ValueError(f"--timeline: expected a suffix out of {', '.join(sorted(known))}, got {path.suffix!r}")
    require_writable(path)


def _format_of(path: Path) -> str:
    return path.suffix.removeprefix(".").lower() or "png"


def _draw(axis: Any, title: str, run: ScenarioRun) -> None:
    origin = run.steps[0].start
    users = list(run.requests)
    for step in run.steps:
        start, width = step.start - origin, step.end - step.start
        for chunk in step.batch.chunks:
            row = users.index(chunk.request.request_id)
            color = DECODE if chunk.is_decode else PREFILL
            axis.broken_barh([(start, width)], (row - 0.36, 0.72), facecolor=color, edgecolor="white", linewidth=0.4)
            if chunk.samples:  # the token comes when the step ends
                axis.plot([start + width] * 2, [row - 0.36, row + 0.36], color=TOKEN, linewidth=1.0)
    _mark_longest_stall(axis, run, users, origin)
    axis.set_yticks(range(len(users)), users)
    axis.invert_yaxis()
    axis.set_title(f"{title}: {len(run.steps)} steps", loc="left", fontsize=11, fontweight="bold")
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.01)


def _mark_longest_stall(axis: Any, run: ScenarioRun, users: list[str], origin: float) -> None:
    gaps = [
        (after - before, user, before, after)
        for user, times in run.times().items()
        for before, after in pairwise(times.token_times)
    ]
    if not gaps:
        return
    gap, user, before, after = max(gaps, key=lambda stall: stall[0])
    row = users.index(user)
    middle = (before + after) / 2 - origin
    axis.annotate(
        "", (after - origin, row), (before - origin, row), arrowprops={"arrowstyle": "<->", "color": STALL, "lw": 1.6}
    )
    axis.annotate(
        f"longest stall {gap:.3g} s",
        (middle, row + 0.06),
        ha="center",
        va="top",
        color=STALL,
        fontsize=9,
        fontweight="bold",
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )


def _legend(axis: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=PREFILL, label="prompt tokens in the step"),
        Patch(color=DECODE, label="output token being computed"),
        Line2D([], [], color=TOKEN, marker="|", linestyle="none", markersize=11, label="token arrives"),
    ]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=9)
