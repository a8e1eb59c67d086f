"""A comparison of settings as a table in the terminal and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from chunkattn.simulation import Outcome


@dataclass(frozen=True)
class Column:
    """A figure of the comparison.

    Attributes:
        title: short, for a head.
        key: of the summary.
        unit: "ms", "share", "rate", "count", "bytes".
        better: "less", "more" or "" where neither is.
        meaning: for who does not know the short name.
    """

    title: str
    key: str
    unit: str
    better: str
    meaning: str


COLUMNS = (
    Column("TTFT p50", "median_ttft_ms", "ms", "less", "time to first token, from the request's arrival: median"),
    Column("TTFT p99", "p99_ttft_ms", "ms", "less", "its 99th percentile"),
    Column("TPOT p50", "median_tpot_ms", "ms", "less", "time per output token after the first, of an answer: median"),
    Column("ITL p99", "p99_itl_ms", "ms", "less", "wait between two tokens of an answer: 99th percentile"),
    Column("ITL max", "max_itl_ms", "ms", "less", "the longest such wait"),
    Column("E2E p50", "median_e2el_ms", "ms", "less", "from the request's arrival to its last token: median"),
    Column("req/s", "request_throughput", "rate", "more", "requests finished a second"),
    Column("tok/s", "output_throughput", "rate", "more", "output tokens a second"),
    Column("in SLO", "slo_attainment", "share", "more", "answers within all objectives"),
    Column("capacity, req/s", "slo_capacity", "rate", "more", "highest rate with 90 % of the answers within them"),
    Column("busy", "busy_share", "share", "", "share of the time in which a step ran"),
    Column("KV peak", "peak_kv_usage", "share", "", "most of a worker's cache pages in use at once"),
    Column("act. peak", "peak_activation_bytes", "bytes", "less", "most memory of a step beside weights and cache"),
    Column("hits", "prefix_cache_hit_rate", "share", "more", "prompt tokens found in the prefix cache"),
    Column("preempt.", "num_preemptions", "count", "less", "times a request lost its pages and began again"),
    Column("workers", "num_workers", "count", "", "machines"),
)


def text_of(value: Any, unit: str) -> str:
    """A figure as people read it."""
    if isinstance(value, float) and math.isnan(value):
        return "-"
    if unit == "ms":
        return f"{value / 1e3:.3g} s" if value >= 1e3 else f"{value:.3g} ms"
    if unit == "share":
        return f"{value:.0%}"
    if unit == "bytes":
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,}" if unit == "count" else f"{value:.3g}"


def name_of(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    """The setting, with the rate where there are several."""
    several = len({o.rate for o in outcomes}) > 1
    return f"{outcome.setting.name} @ {outcome.rate:.3g}/s" if several else outcome.setting.name


def comparison_table(outcomes: Sequence[Outcome]) -> Table:
    """Settings side by side: figures are rows, so that it fits a terminal."""
    table = Table(title="What the users felt and the machine did", title_style="bold", title_justify="left")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(name_of(outcome, outcomes), justify="right")
    for column in COLUMNS:
        values = [outcome.summary.get(column.key, math.nan) for outcome in outcomes]
        if all(map(math.isnan, values)):
            continue  # nobody asked
        best = _best(values, column.better)
        cells = [text_of(value, column.unit) for value in values]
        table.add_row(column.title, *(f"[bold]{c}[/]" if i in best else c for i, c in enumerate(cells)))
    return table


def findings(outcomes: Sequence[Outcome]) -> list[str]:
    """What the figures say, in sentences; the first setting is what the others are measured against."""
    if not outcomes:
        return []
    lines = []
    for rate in sorted({outcome.rate for outcome in outcomes}):
        base, *others = [outcome for outcome in outcomes if outcome.rate == rate]
        for other in others:
            parts = [
                _change(base, other, "max_itl_ms", "the longest wait between two tokens is", "shorter", "longer"),
                _change(base, other, "p99_itl_ms", "its 99th percentile", "shorter", "longer"),
                _change(base, other, "median_ttft_ms", "the median time to first token", "shorter", "longer"),
                _change(base, other, "peak_activation_bytes", "peak activation memory", "smaller", "larger"),
                _change(base, other, "output_throughput", "throughput", "lower", "higher"),
            ]
            workers = other.summary["num_workers"]
            note = f" (on {workers} workers)" if workers != base.summary["num_workers"] else ""
            lines.append(
                f"{name_of(other, outcomes)}{note} against {name_of(base, outcomes)}: {', '.join(filter(None, parts))}."
            )
    return lines


def _change(base: Outcome, other: Outcome, key: str, what: str, less: str, more: str) -> str:
    before, after = base.summary[key], other.summary[key]
    if not before or not after or math.isnan(before) or math.isnan(after):
        return ""
    ratio, word = (before / after, less) if after < before else (after / before, more)
    return f"{what} the same" if ratio < 1.02 else f"{what} {ratio:.3g}× {word}"


def _best(values: Sequence[float], better: str) -> set[int]:
    known = [value for value in values if not math.isnan(value)]
    if not better or len(set(known)) < 2:
        return set()
    wanted = min(known) if better == "less" else max(known)
    return {i for i, value in enumerate(values) if value == wanted}
