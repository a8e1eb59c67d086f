"""Pictures of a comparison: steps in time, latencies, throughput against latency, memory."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from chunkattn.cli.serve_table import name_of
from chunkattn.extras import require
from chunkattn.serving import Recorder
from chunkattn.simulation import Outcome

_PREFILL, _DECODE, _WAIT, _STALL = "#1f77b4", "#8fc98a", "#dddddd", "#d62728"
_ROWS = 30  # requests in a Gantt chart
_IDLE_S = 0.005  # between two steps: nobody was there


def draw_all(outcomes: Sequence[Outcome]) -> dict[str, bytes]:
    """Every picture as PNG, by name; each says at its foot how its steps were timed.

    Args:
        outcomes: of the comparison; the Gantt charts and memory are of the last rate.
    """
    require("matplotlib", extra="demo", purpose="the pictures of serve-sim")
    last = [outcome for outcome in outcomes if outcome.rate == outcomes[-1].rate]
    return {
        "steps": _steps(last),
        "latency": _latency(last),
        "tradeoff": _tradeoff(outcomes),
        "memory": _memory(last),
    }


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Any, outcomes: Sequence[Outcome]) -> bytes:
    notes = dict.fromkeys(outcome.note for outcome in outcomes)
    figure.supxlabel(f"steps: {'; '.join(notes)}", fontsize=8, color="#666666", x=0.01, ha="left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _titled(axis: Any, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axis.spines[["top", "right"]].set_visible(False)


def _plain(axis: Any, unit: str) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, as people write numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {unit}"))
    axis.set_minor_formatter(NullFormatter())


def _steps(outcomes: Sequence[Outcome]) -> bytes:
    """Gantt charts: a row a request; prompt chunks, decodes, and the longest wait between two tokens."""
    figure = _figure(12, 1 + 3.0 * len(outcomes))
    axes = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
    for axis, outcome in zip(axes, outcomes, strict=True):
        _gantt(axis, outcome)
        _titled(axis, name_of(outcome, outcomes))
    axes[-1].set_xlabel("seconds since the first arrival")
    from matplotlib.patches import Patch

    colours = (
        (_PREFILL, "prompt (a white line ends a chunk)"),
        (_DECODE, "answer, token by token"),
        (_WAIT, "nothing runs for it"),
        (_STALL, "longest wait between two tokens"),
    )
    handles = [Patch(color=colour, label=label) for colour, label in colours]
    axes[0].legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=9)
    return _png(figure, outcomes)


def _gantt(axis: Any, outcome: Outcome) -> None:
    spans = [span for recorder in outcome.recorders for span in recorder.spans]
    names = list(dict.fromkeys(span.request_id for span in spans))[:_ROWS]
    rows = {name: row for row, name in enumerate(names)}
    longest = (0.0, 0.0, 0.0, "")
    for name in names:
        record = outcome.records[name]
        times = [record.request.arrival_time, *record.token_times]
        axis.broken_barh([(times[0], times[-1] - times[0])], (rows[name] - 0.4, 0.8), facecolor=_WAIT)
        for before, after in pairwise(times[1:]):
            longest = max(longest, (after - before, before, after, name))
    for decode, colour in ((True, _DECODE), (False, _PREFILL)):
        for name in names:
            bars = [(s.start, s.end - s.start) for s in spans if s.request_id == name and s.is_decode == decode]
            width = 0.15 if decode else 0.7
            axis.broken_barh(bars, (rows[name] - 0.4, 0.8), facecolor=colour, edgecolor="white", linewidth=width)
    gap, before, after, name = longest
    if gap:
        axis.plot([before, after], [rows[name]] * 2, color=_STALL, linewidth=3, solid_capstyle="butt")
        axis.annotate(
            f" {gap:.2g} s",
            (after, rows[name]),
            color=_STALL,
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        )
    axis.set_ylabel("request")
    axis.invert_yaxis()


def _latency(outcomes: Sequence[Outcome]) -> bytes:
    """How many users wait longer than so long, for the first token and between tokens; the tail is at the bottom."""
    figure = _figure(12, 4.2)
    left, right = figure.subplots(1, 2)
    for outcome in outcomes:
        done = [record for record in outcome.records.values() if record.token_times]
        first = sorted(record.ttft for record in done)
        gaps = sorted(gap for record in done for gap in record.gaps)
        for axis, values in ((left, first), (right, gaps)):
            if not values:
                continue
            ranks = _ranks(len(values))
            shares = [100 * (len(values) - rank) / len(values) for rank in ranks]
            axis.step(
                [values[rank] for rank in ranks], shares, where="pre", label=name_of(outcome, outcomes), linewidth=1.6
            )
    for axis, title, what in (
        (left, "time to first token", "% of the requests that wait at least so long"),
        (right, "wait between two tokens", "% of the tokens that take at least so long"),
    ):
        axis.set_xscale("log")
        axis.set_yscale("log")
        _plain(axis.xaxis, "s")
        _plain(axis.yaxis, "%")
        axis.set_ylabel(what)
        axis.grid(alpha=0.3)
        _titled(axis, title)
    left.legend(frameon=False, fontsize=9, loc="lower left")
    return _png(figure, outcomes)


def _ranks(count: int) -> list[int]:
    """Up to a few hundred places in an ordered list, dense at its end."""
    return sorted({0, *(count - int(count ** (i / 300)) for i in range(300))})


def _tradeoff(outcomes: Sequence[Outcome]) -> bytes:
    """Throughput against latency: a line a setting, a point a rate."""
    figure = _figure(12, 4.2)
    axes = figure.subplots(1, 2)
    names = list(dict.fromkeys(outcome.setting.name for outcome in outcomes))
    several = len({outcome.rate for outcome in outcomes}) > 1
    for axis, key, title in (
        (axes[0], "p99_itl_ms", "99th percentile of the wait between tokens"),
        (axes[1], "median_ttft_ms", "median time to first token"),
    ):
        for name in names:
            # Answers of one token have no wait between tokens.
            of_setting = [o for o in outcomes if o.setting.name == name and math.isfinite(o.summary[key])]
            points = [(o.summary["output_throughput"], o.summary[key] / 1e3) for o in of_setting]
            axis.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name, linewidth=1.4)
            for point, outcome in zip(points, of_setting, strict=True):
                if several:
                    rate = f"{outcome.rate:.3g}/s"
                    axis.annotate(rate, point, xytext=(5, 4), textcoords="offset points", fontsize=8, color="#555555")
        if all(map(math.isfinite, axis.dataLim.extents)):  # there is something to show
            axis.set_xlim(0, 1.15 * axis.dataLim.x1)
            axis.set_ylim(0, 1.15 * axis.dataLim.y1)
        axis.set_xlabel("output tokens a second")
        axis.set_ylabel("seconds")
        axis.grid(alpha=0.3)
        _titled(axis, title)
    axes[0].legend(frameon=False, fontsize=9, loc="lower left")
    return _png(figure, outcomes)


def _memory(outcomes: Sequence[Outcome]) -> bytes:
    """Pages in use over time, and the peak of activations."""
    figure = _figure(12, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for i, outcome in enumerate(outcomes):
        for number, recorder in enumerate(outcome.recorders):
            left.plot(
                *_pages(recorder),
                label=name_of(outcome, outcomes) if number == 0 else None,
                linewidth=1.2,
                linestyle="--" if number else "-",
                color=f"C{i}",
            )
    left.set_xlabel("seconds since the first arrival")
    left.set_ylabel(f"pages in use, of {outcomes[0].recorders[0].scheduler.pool.num_pages:,}")
    apart = any(len(outcome.recorders) > 1 for outcome in outcomes)
    _titled(left, "KV cache over time" + (" (dashed: the decode worker's)" if apart else ""))
    left.legend(frameon=False, fontsize=9)
    values = [outcome.summary["peak_activation_bytes"] / 1e6 for outcome in outcomes]
    colours = [f"C{i}" for i in range(len(outcomes))]
    bars = right.barh([name_of(outcome, outcomes) for outcome in outcomes], values, color=colours)
    right.bar_label(bars, [f"{value:,.1f} MB" for value in values], padding=3, fontsize=9)
    right.margins(x=0.25)
    right.invert_yaxis()
    right.set_xlabel("MB")
    _titled(right, "peak activations of a step")
    return _png(figure, outcomes)


def _pages(recorder: Recorder) -> tuple[list[float], list[int]]:
    """Pages in use against time as corners of a line; none between steps that do not follow one another."""
    stride = max(len(recorder.step_ends) // 4000, 1)
    seconds, pages, ended = [0.0], [0], 0.0
    for start, end, used in zip(recorder.step_starts, recorder.step_ends, recorder.pages_in_use, strict=True):
        if start - ended > _IDLE_S:
            seconds += [ended, start]
            pages += [0, 0]
        seconds += [start, end]
        pages += [used, used]
        ended = end
    # Of a long run every nth corner.
    return [*seconds[::stride], ended], [*pages[::stride], 0]
