"""Pictures of a comparison: steps in time, latencies, throughput against latency, memory."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from chunkattn.cli.serve_table import name_of
from chunkattn.extras import require
from chunkattn.serving import percentile
from chunkattn.simulation import Outcome

_PREFILL, _DECODE, _WAIT, _STALL = "#1f77b4", "#8fc98a", "#eeeeee", "#d62728"
_ROWS = 30  # requests in a Gantt chart


def draw_all(outcomes: Sequence[Outcome]) -> dict[str, bytes]:
    """Every picture as PNG, by name.

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


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _steps(outcomes: Sequence[Outcome]) -> bytes:
    """Gantt charts: a row a request; prompt chunks, decodes, and the longest wait between two tokens."""
    figure = _figure(12, 1 + 3.0 * len(outcomes))
    axes = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
    for axis, outcome in zip(axes, outcomes, strict=True):
        _gantt(axis, outcome)
        axis.set_title(name_of(outcome, outcomes), loc="left", fontsize=11, fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds since the first arrival")
    from matplotlib.patches import Patch

    colours = ((_PREFILL, "prompt"), (_DECODE, "decode"), (_WAIT, "waiting"), (_STALL, "longest wait for a token"))
    handles = [Patch(color=colour, label=label) for colour, label in colours]
    axes[0].legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=9)
    return _png(figure)


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
            axis.broken_barh(bars, (rows[name] - 0.4, 0.8), facecolor=colour, edgecolor="white", linewidth=0.15)
    gap, before, after, name = longest
    if gap:
        axis.plot([before, after], [rows[name]] * 2, color=_STALL, linewidth=3, solid_capstyle="butt")
        axis.annotate(
            f"{gap:.3g} s", ((before + after) / 2, rows[name] - 0.5), color=_STALL, ha="center", va="bottom", fontsize=9
        )
    axis.set_ylabel("request")
    axis.invert_yaxis()


def _latency(outcomes: Sequence[Outcome]) -> bytes:
    """Distributions of time to first token and of the waits between tokens."""
    figure = _figure(12, 4)
    left, right = figure.subplots(1, 2)
    for outcome in outcomes:
        times = [record.token_times for record in outcome.records.values() if record.token_times]
        arrivals = [record.request.arrival_time for record in outcome.records.values() if record.token_times]
        first = sorted(tokens[0] - arrival for tokens, arrival in zip(times, arrivals, strict=True))
        gaps = sorted(after - before for tokens in times for before, after in pairwise(tokens))
        for axis, values in ((left, first), (right, gaps)):
            levels = [0, 1, 5, *range(10, 90, 2), 90, 95, 98, 99, 99.5, 99.9, 99.99, 100]
            axis.plot([percentile(values, q) for q in levels], levels, label=name_of(outcome, outcomes), linewidth=1.6)
    for axis, title in ((left, "time to first token"), (right, "wait between two tokens")):
        axis.set_xscale("log")
        axis.set_xlabel("seconds")
        axis.set_ylabel("% of them take at most")
        axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=9)
    return _png(figure)


def _tradeoff(outcomes: Sequence[Outcome]) -> bytes:
    """Throughput against latency: a line a setting where several rates ran."""
    figure = _figure(12, 4)
    axes = figure.subplots(1, 2)
    names = list(dict.fromkeys(outcome.setting.name for outcome in outcomes))
    for axis, key, title in (
        (axes[0], "p99_itl_ms", "99th percentile of the wait between tokens"),
        (axes[1], "median_ttft_ms", "median time to first token"),
    ):
        for name in names:
            of_setting = [outcome for outcome in outcomes if outcome.setting.name == name]
            points = [(o.summary["output_throughput"], o.summary[key] / 1e3) for o in of_setting]
            axis.plot(*zip(*points, strict=True), marker="o", label=name, linewidth=1.4)
        axis.set_yscale("log")
        axis.set_xlabel("output tokens a second")
        axis.set_ylabel("seconds")
        axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9)
    return _png(figure)


def _memory(outcomes: Sequence[Outcome]) -> bytes:
    """Pages in use over time, and the peak of activations."""
    figure = _figure(12, 4)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for outcome in outcomes:
        for number, recorder in enumerate(outcome.recorders):
            stride = max(len(recorder.step_ends) // 4000, 1)
            label = name_of(outcome, outcomes) if number == 0 else None
            colour = left.lines[-1].get_color() if number else None
            left.step(
                recorder.step_ends[::stride],
                recorder.pages_in_use[::stride],
                where="post",
                label=label,
                linewidth=1,
                linestyle="--" if number else "-",
                color=colour,
            )
    left.set_xlabel("seconds")
    left.set_ylabel("KV pages in use")
    left.set_title("cache over time (dashed: the decode worker)", loc="left", fontsize=11, fontweight="bold")
    left.legend(frameon=False, fontsize=9)
    values = [outcome.summary["peak_activation_bytes"] / 1e6 for outcome in outcomes]
    colours = [f"C{i}" for i in range(len(outcomes))]
    right.barh([name_of(outcome, outcomes) for outcome in outcomes], values, color=colours)
    right.invert_yaxis()
    right.set_xlabel("MB")
    right.set_title("peak activations", loc="left", fontsize=11, fontweight="bold")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    return _png(figure)
