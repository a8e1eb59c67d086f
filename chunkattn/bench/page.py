"""The report: one HTML page that needs nothing from anywhere, tables and charts of a record."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from chunkattn.bench import overview, providers, scaling, svg
from chunkattn.bench.overview import anchor, milliseconds
from chunkattn.bench.record import Cell, Record
from chunkattn.bench.table import ours, ratio, title

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:0}h2{margin-top:2.5rem;border-bottom:1px solid #ddd}h3{margin:1.8rem 0 .3rem}
table{border-collapse:collapse;font-size:14px;margin:.4rem 0}
th,td{padding:.15rem .8rem .15rem 0;text-align:right}th:first-child,td:first-child{text-align:left}
thead th{border-bottom:1px solid #999}tr.ours{font-weight:600}.dim{color:#666;font-size:13px}.warn{color:#a40}
.lead{color:#07633f}.level{color:#666}.behind{color:#a11}.text{text-align:left!important}
svg{max-width:100%;height:auto;display:block;margin:.4rem 0}code{background:#f4f4f4;padding:0 .25rem}
"""

_NAMED = 8
"""Most places of a roofline that get the names of their cases."""


def render(record: Record) -> str:
    """The whole page.

    Args:
        record: what was measured; several files may have been merged into it.
    """
    colours = _colours(record)
    body = [
        "<h1>chunkattn bench</h1>",
        *overview.render(record),
        *_roofline(record, colours),
        *_heat_maps(record),
        *_scaling(record, colours),
        '<h2 id="cases">Every case</h2>',
        *(part for cell in record.cells for part in _cell(cell, colours)),
        *_micro(record),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>chunkattn bench</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _colours(record: Record) -> dict[str, str]:
    names = list(dict.fromkeys(p.provider for cell in record.cells for p in cell.providers))
    names.sort(key=lambda name: name not in providers.OURS)
    return {name: svg.PALETTE[i % len(svg.PALETTE)] for i, name in enumerate(names)}


def _roofline(record: Record, colours: dict[str, str]) -> Iterator[str]:
    """FLOP/s over FLOP per byte, a chart a dtype; dashed: what the machine gives."""
    busy = [cell for cell in record.cells if cell.flops and cell.measured()]
    if not busy:
        return
    yield (
        '<h2 id="roofline">Roofline</h2><p>A point is a case and a provider, at the operations for each byte that must '
        "move. Left of the bend memory is the limit, right of it arithmetic; the distance to the dashed line is what "
        "can still be gained. A point tells its case when pointed at.</p>"
    )
    for dtype in dict.fromkeys(cell.dtype for cell in busy):
        cells = [cell for cell in busy if cell.dtype == dtype]
        matmul = _middle([cell.rates["matmul"] for cell in cells])
        read = _middle([cell.rates["paged_read"] for cell in cells])
        low = min(matmul / read, *(cell.flops / cell.bytes for cell in cells)) / 1.5
        high = max(max(cell.flops / cell.bytes for cell in cells) * 1.5, 2 * matmul / read)
        roof = [(low, low * read / 1e9), (matmul / read, matmul / 1e9), (high, matmul / 1e9)]
        series = [svg.Series("machine's limit", "#c00", roof, dashed=True, marks=False)]
        for name, colour in reversed(colours.items()):  # ours last, on top
            points, titles, label = [], [], name
            for cell in cells:
                one = cell.provider(name)
                if one is not None and one.samples:
                    label = one.label
                    points.append((cell.flops / cell.bytes, cell.flops / one.seconds / 1e9))
                    titles.append(f"{one.label}: {title(cell)}: {one.seconds * 1e3:.3f} ms")
            if points:
                radius = 5.0 if name in providers.OURS else 3.5
                series.append(svg.Series(label, colour, points, titles=titles, radius=radius))
        yield f"<h3>{dtype}</h3>"
        names: dict[float, list[str]] = {}
        for cell in cells:
            names.setdefault(cell.flops / cell.bytes, []).append(cell.name)
        known = {at: ", ".join(dict.fromkeys(found)) for at, found in names.items()} if len(names) <= _NAMED else {}
        yield svg.log_plot(
            series,
            x_label="FLOP per byte that must move",
            y_label="GFLOP/s",
            width=960,
            places=known,
        )


def _heat_maps(record: Record) -> Iterator[str]:
    grid = [c for c in record.cells if set(c.axes) == {"chunk", "history"} and ours(c) is not None]
    if not grid:
        return
    yield '<h2 id="heat">Chunk × history</h2><h3>Share of the floor that ours reaches</h3>'
    share = {}
    lead = {}
    for cell in grid:
        point, mine = (cell.axes["history"], cell.axes["chunk"]), ours(cell)
        assert mine is not None
        share[point] = 100 * cell.floor_s / mine.seconds
        peers = [p for p in cell.measured() if p.provider not in providers.OURS]
        if peers:
            lead[point] = ratio(mine, peers[0])
    yield svg.heat_map(share, x_label="history", y_label="chunk", low=30, high=95, unit="%")
    if lead:
        yield "<h3>The best peer's time by ours, in each cell the best there</h3>"
        yield svg.heat_map(lead, x_label="history", y_label="chunk", low=0.7, high=1.6, unit="×")


def _scaling(record: Record, colours: dict[str, str]) -> Iterator[str]:
    """Time over one size: cells whose only axis it is, in the same family of names, with the fit on the work."""
    families = scaling.families(record.cells)
    if not families:
        return
    yield (
        '<h2 id="scaling">Scaling</h2>'
        "<p>Dashed: the floor. A cost that grows in proportion runs parallel to it on these axes. The "
        "fit is a fixed time plus one rate, on the operations or bytes that the formulas count; its deviation says "
        "where a size has a cliff.</p>"
    )
    for (family, axis), cells in families.items():
        floor = [(cell.axes[axis], cell.floor_s * 1e3) for cell in cells]
        series = [svg.Series("floor", "#c00", floor, dashed=True, marks=False)]
        for name, colour in colours.items():
            found = [(cell, cell.provider(name)) for cell in cells]
            points = [(cell.axes[axis], one.seconds * 1e3) for cell, one in found if one is not None and one.samples]
            if points:
                label = next(one.label for _, one in found if one is not None)
                series.append(svg.Series(label, colour, points))
        fit = scaling.growth(cells, axis)
        line = [(cell.axes[axis], 1e3 * fit.seconds(cell)) for cell in cells]
        series.append(svg.Series("fit of ours", "#999", line, dashed=True, marks=False))
        yield f"<h3>{escape(family)} over {escape(axis)}</h3>"
        sizes = [cell.axes[axis] for cell in cells]
        yield svg.log_plot(series, x_label=axis, y_label="ms", width=960, height=340, x_ticks=sizes)
        yield f'<p class="dim">{escape(fit.sentence(axis))}.</p>'


def _cell(cell: Cell, colours: dict[str, str]) -> Iterator[str]:
    mine = ours(cell)
    yield f'<h3 id="{anchor(cell)}">{escape(title(cell))}</h3>'
    rows = [
        svg.Bar(
            one.label,
            one.seconds * 1e3,
            colours[one.provider],
            f"{one.seconds * 1e3:.3g} ms, {cell.floor_s / one.seconds:.0%} of floor",
        )
        for one in cell.measured()
    ]
    if rows:
        yield svg.bars(rows, mark=cell.floor_s * 1e3, mark_label=f"floor {cell.floor_s * 1e3:.3g} ms ({cell.bound})")
    yield "<table><thead><tr><th>provider</th><th>ms</th><th>spread</th><th>best ms</th><th>GFLOP/s</th>"
    yield "<th>GB/s</th><th>of floor</th><th>ours is</th><th>error</th><th>MiB</th><th>quiet</th></tr></thead><tbody>"
    for one in cell.measured():
        lead = "" if mine is None or one is mine else f"{ratio(mine, one):.2f}×"
        memory = "" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:.1f}"
        error = "" if one.error is None else f"{one.error:.2f}"
        yield (
            f'<tr class="{"ours" if one is mine else ""}"><td>{escape(one.label)}</td>'
            f"<td>{milliseconds(one.seconds)}</td>"
            f"<td>{one.spread:.0%}</td><td>{milliseconds(one.best)}</td><td>{cell.flops / one.seconds / 1e9:.0f}</td>"
            f"<td>{cell.bytes / one.seconds / 1e9:.1f}</td><td>{cell.floor_s / one.seconds:.0%}</td><td>{lead}</td>"
            f"<td>{error}</td><td>{memory}</td><td>{sum(s.quiet for s in one.samples)}/{len(one.samples)}</td></tr>"
        )
    yield "</tbody></table>"
    limits = ", ".join(f"{name.replace('_', ' ')} {rate / 1e9:.4g} G{unit}" for name, rate, unit in _rates(cell))
    yield f'<p class="dim">{cell.flops / 1e9:.3g} GFLOP, {cell.bytes / 1e6:.3g} MB; {escape(limits)}; '
    yield f"{cell.buffers} input set(s)</p>"
    for one in cell.providers:
        if not one.samples and one.status != "missing":  # the missing ones are listed once, at the top
            yield f'<p class="warn">{escape(one.label)}: {escape(one.status)}: {escape(one.reason)}</p>'
        for note in one.notes:
            yield f'<p class="warn">{escape(one.label)}: {escape(note)}</p>'


def _micro(record: Record) -> Iterator[str]:
    if not record.micro:
        return
    yield "<h2>Calls</h2><table><thead><tr><th>what</th><th>median µs</th><th>best µs</th><th></th></tr></thead><tbody>"
    for one in record.micro:
        best = min(s.best_s for s in one.samples)
        yield (
            f"<tr><td>{escape(one.label)}</td><td>{one.seconds * 1e6:.2f}</td><td>{best * 1e6:.2f}</td>"
            f"<td>{escape(one.note)}</td></tr>"
        )
    yield "</tbody></table>"


def _rates(cell: Cell) -> Iterator[tuple[str, float, str]]:
    for name, rate in cell.rates.items():
        yield name, rate, cell.limits[name].label


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
