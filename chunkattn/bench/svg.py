"""Charts as SVG text, drawn by hand so that a report needs nothing from anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

PALETTE = ("#0b6e4f", "#d95f02", "#7570b3", "#e7298a", "#1f78b4", "#a6761d", "#666666", "#b15928", "#17becf")

_LONGEST = 4.0
"""Bars longer than so many times the shortest (or the mark) are cut."""

_LETTER_WIDTH = 6
"""Pixels of a letter of 11 pixels' height, about."""


@dataclass(frozen=True)
class Bar:
    """A bar: its name, length, colour and the text at its end."""

    label: str
    value: float
    colour: str
    text: str


@dataclass(frozen=True)
class Series:
    """A line or a cloud of points (x, y)."""

    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    marks: bool = True
    titles: Sequence[str] = ()
    radius: float = 4.0


def bars(rows: Sequence[Bar], *, mark: float, mark_label: str, width: int = 820) -> str:
    """Horizontal bars, with a line at `mark` across all of them; bars far longer than the rest are cut, and look it."""
    left, right, step = 150, 190, 24
    most = max([mark, *(row.value for row in rows)], default=1.0) or 1.0
    top = min(most, _LONGEST * max(mark, min((row.value for row in rows), default=most)))
    scale = (width - left - right) / top
    height = 20 + step * len(rows) + 4
    parts = [_open(width, height)]
    for number, row in enumerate(rows):
        y = 20 + number * step
        length = max(1.0, min(row.value, top) * scale)
        parts.append(_text(left - 8, y + 15, row.label, anchor="end"))
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="16" rx="2" fill="{row.colour}"/>')
        if row.value > top * 1.001:
            cut = left + length - 26
            parts.append(f'<path d="M{cut:.1f} {y + 21}l6 -20h6l-6 20z" fill="#fff"/>')
        parts.append(_text(left + length + 6, y + 15, row.text, size=12))
    x = left + mark * scale
    parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="16" y2="{height - 2}" stroke="#c00" stroke-dasharray="4 3"/>')
    parts.append(_text(x + 4, 12, mark_label, size=11, colour="#c00"))
    return "".join([*parts, "</svg>"])


def log_plot(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    width: int = 720,
    height: int = 420,
    legend: bool = True,
    x_ticks: Sequence[float] | None = None,
    places: dict[float, str] | None = None,
) -> str:
    """Lines and points over logarithmic axes; points that are not positive are left out.

    Args:
        series: what to draw, the last on top.
        x_label, y_label: of the axes.
        width, height: of the picture.
        legend: whether the series are named beside it.
        x_ticks: numbers under the axis, instead of round ones.
        places: names over the picture at some x.
    """
    kept = [[(x, y) for x, y in one.points if x > 0 and y > 0] for one in series]
    flat = [point for points in kept for point in points]
    if not flat:
        return ""
    left, right, top, bottom = 64, 170 if legend else 16, 20 if places else 12, 44
    x_low, x_high = _span([x for x, _ in flat])
    y_low, y_high = _span([y for _, y in flat])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / (x_high - x_low)
        up = (math.log10(y) - y_low) / (y_high - y_low)
        return left + across * (width - left - right), height - bottom - up * (height - top - bottom)

    parts = [_open(width, height)]
    for value in x_ticks or _ticks(x_low, x_high):
        x, _ = place(value, 10**y_low)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}" stroke="#eee"/>')
        parts.append(_text(x, height - bottom + 16, _short(value), anchor="middle", size=11))
    for value in _ticks(y_low, y_high):
        _, y = place(10**x_low, value)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(_text(left - 6, y + 4, _short(value), anchor="end", size=11))
    parts.append(_text((left + width - right) / 2, height - 8, x_label, anchor="middle", size=12))
    parts.append(
        f'<text transform="translate(14 {(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle" '
        f'font-size="12">{escape(y_label)}</text>'
    )
    for at, text in _spaced({place(at, 1.0)[0]: text for at, text in (places or {}).items()}).items():
        parts.append(_text(at, 12, text, anchor="middle", size=11, colour="#666"))
    for one, points in zip(series, kept, strict=True):
        parts.append(_line(one, [place(x, y) for x, y in points]))
    for number, one in enumerate(series if legend else ()):
        y = top + 14 + 18 * number
        parts.append(f'<rect x="{width - right + 12}" y="{y - 9}" width="11" height="11" fill="{one.colour}"/>')
        parts.append(_text(width - right + 28, y, one.label, size=12))
    return "".join([*parts, "</svg>"])


def heat_map(
    values: dict[tuple[float, float], float], *, x_label: str, y_label: str, low: float, high: float, unit: str
) -> str:
    """A grid of coloured cells {(x, y): value} with the value in each; `low` is red, `high` green."""
    xs, ys = sorted({x for x, _ in values}), sorted({y for _, y in values})
    cell_width, cell_height, left, bottom = 78, 34, 70, 44
    width, height = left + cell_width * len(xs) + 10, cell_height * len(ys) + bottom + 6
    parts = [_open(width, height)]
    for column, x in enumerate(xs):
        middle = left + column * cell_width + cell_width / 2
        parts.append(_text(middle, height - bottom + 16, _short(x), anchor="middle", size=11))
        for row, y in enumerate(reversed(ys)):
            value = values.get((x, y))
            if value is None:
                continue
            share = min(1.0, max(0.0, (value - low) / (high - low)))
            fill = f"hsl({120 * share:.0f}, 55%, 72%)"
            parts.append(
                f'<rect x="{left + column * cell_width}" y="{row * cell_height + 4}" width="{cell_width - 2}" '
                f'height="{cell_height - 2}" fill="{fill}"/>'
            )
            parts.append(_text(middle, row * cell_height + 26, f"{value:.3g}{unit}", anchor="middle", size=12))
    for row, y in enumerate(reversed(ys)):
        parts.append(_text(left - 8, row * cell_height + 26, _short(y), anchor="end", size=11))
    parts.append(_text(left + cell_width * len(xs) / 2, height - 8, x_label, anchor="middle", size=12))
    parts.append(
        f'<text transform="translate(14 {cell_height * len(ys) / 2}) rotate(-90)" text-anchor="middle" '
        f'font-size="12">{escape(y_label)}</text>'
    )
    return "".join([*parts, "</svg>"])


def _spaced(names: dict[float, str]) -> dict[float, str]:
    """Names at their x in pixels; one that would touch its neighbour joins it."""
    joined: dict[float, list[str]] = {}
    end = -math.inf
    for x, name in sorted(names.items()):
        if x - _LETTER_WIDTH * len(name) / 2 < end:
            joined[max(joined)].append(name)
        else:
            joined[x] = [name]
        end = max(joined) + _LETTER_WIDTH * len(", ".join(joined[max(joined)])) / 2 + 8
    return {x: ", ".join(dict.fromkeys(found)) for x, found in joined.items()}


def _line(one: Series, places: Sequence[tuple[float, float]]) -> str:
    parts = []
    if one.dashed or not one.titles:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="6 4"' if one.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width="2"{dash}/>')
    for number, (x, y) in enumerate(places if one.marks else ()):
        title = f"<title>{escape(one.titles[number])}</title>" if number < len(one.titles) else ""
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{one.radius:g}" fill="{one.colour}" fill-opacity="0.85">'
            f"{title}</circle>"
        )
    return "".join(parts)


def _open(width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
    )


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis, a little beyond the values."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.06, 0.05 * (high - low))
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; powers alone where that would be many."""
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    return [s * 10.0**p for p in powers for s in steps if low <= math.log10(s * 10.0**p) <= high]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and value % (size / 1000) == 0 and value / size >= 10:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
