"""The report: one HTML page that needs nothing from anywhere, tables and charts of a record."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from chunkattn.bench import providers, scaling, svg
from chunkattn.bench.record import Cell, Record
from chunkattn.bench.table import ours, ratio, title

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:0}h2{margin-top:2.5rem;border-bottom:1px solid #ddd}h3{margin:1.8rem 0 .3rem}
table{border-collapse:collapse;font-size:14px;margin:.4rem 0}
th,td{padding:.15rem .8rem .15rem 0;text-align:right}th:first-child,td:first-child{text-align:left}
thead th{border-bottom:1px solid #999}tr.ours{font-weight:600}.dim{color:#666;font-size:13px}.warn{color:#a40}
svg{max-width:100%;height:auto;display:block;margin:.4rem 0}code{background:#f4f4f4;padding:0 .25rem}
"""


def render(record: Record) -> str:
    """The whole page.

    Args:
        record: what was measured; several files may have been merged into it.
    """
    colours = _colours(record)
    body = [
        "<h1>chunkattn bench</h1>",
        *_origin(record),
        *_reading(),
        *_summary(record, colours),
        *_roofline(record, colours),
        *_heat_maps(record),
        *_scaling(record, colours),
        "<h2>Every case</h2>",
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


def _origin(record: Record) -> Iterator[str]:
    for part in record.parts[:1]:
        facts = part.machine
        where = [facts.get("processor", ""), f"{facts.get('threads')} threads", *facts.get("gpus", [])]
        versions = ", ".join(f"{name} {version}" for name, version in part.versions.items())
        yield f"<p>{escape(part.started)} · {escape(', '.join(where))}<br>{escape(versions)}</p>"
    yield f'<details class="dim"><summary>{len(record.parts)} command(s)</summary>'
    for part in record.parts:
        yield f"<code>{escape(part.command)}</code> ({escape(part.started)}, {part.seconds:.0f} s)<br>"
    yield "</details>"


def _reading() -> Iterator[str]:
    yield (
        "<h2>How to read this</h2><p>Every provider computes the same step on the same random data; its output is "
        "compared with a float64 oracle before timing, at random moments while it is timed, and on fresh data after. "
        "A wrong one has no time here. Providers take turns in every round, in random order, each for a short window; "
        "a window in which other programs ran is set aside. Times are medians over windows; <em>spread</em> is their "
        "interquartile range; <em>ours is</em> is the median over rounds of the peer's time by ours. Calls rotate over "
        "input sets larger together than the last-level cache. <em>Error</em> is the worst row in units of the budget "
        "that a correct kernel in that dtype may use; <em>MiB</em> is what one call takes beyond what it is "
        "given and what the provider keeps.</p><p>The <em>floor</em> is the larger of: exact "
        "floating-point operations of the visible pairs at the rate of a plain matmul in that dtype, and bytes that "
        "must be read or written once at the rate of a plain read of the same pages. Both rates are measured in "
        "the same rounds. No kernel can be much under it; what is left above it is what can still be gained.</p>"
    )


def _summary(record: Record, colours: dict[str, str]) -> Iterator[str]:
    yield "<h2>Summary</h2><table><thead><tr><th>case</th><th>dtype</th><th>page</th><th>ours ms</th>"
    yield "<th>of floor</th><th>best peer</th><th>its ms</th><th>ours is</th></tr></thead><tbody>"
    for cell in record.cells:
        mine = ours(cell)
        peers = [p for p in cell.measured() if p.provider not in providers.OURS]
        if mine is None:
            continue
        best = (
            f"<td>{escape(peers[0].label)}</td><td>{_ms(peers[0].seconds)}</td><td>{ratio(mine, peers[0]):.2f}×</td>"
            if peers
            else "<td>none measured</td><td></td><td></td>"
        )
        yield (
            f'<tr><td><a href="#{_anchor(cell)}">{escape(cell.name)}</a></td><td>{_dtypes(cell)}</td>'
            f"<td>{cell.page_size}</td><td>{_ms(mine.seconds)}</td><td>{cell.floor_s / mine.seconds:.0%}</td>"
            f"{best}</tr>"
        )
    yield "</tbody></table>"


def _roofline(record: Record, colours: dict[str, str]) -> Iterator[str]:
    """FLOP/s over FLOP per byte, for the dtype with the most cells; dashed: what the machine gives."""
    busy = [cell for cell in record.cells if cell.flops and cell.measured()]
    if not busy:
        return
    dtypes = list(dict.fromkeys(cell.dtype for cell in busy))
    yield "<h2>Roofline</h2>"
    for dtype in dtypes:
        cells = [cell for cell in busy if cell.dtype == dtype]
        matmul = _middle([cell.rates["matmul"] for cell in cells])
        read = _middle([cell.rates["paged_read"] for cell in cells])
        low = min(cell.flops / cell.bytes for cell in cells) / 1.5
        high = max(max(cell.flops / cell.bytes for cell in cells) * 1.5, 2 * matmul / read)
        roof = [(low, low * read / 1e9), (matmul / read, matmul / 1e9), (high, matmul / 1e9)]
        series = [svg.Series("limit", "#c00", roof, dashed=True, marks=False)]
        for name, colour in colours.items():
            points, titles, label = [], [], name
            for cell in cells:
                one = cell.provider(name)
                if one is not None and one.samples:
                    label = one.label
                    points.append((cell.flops / cell.bytes, cell.flops / one.seconds / 1e9))
                    titles.append(f"{one.label}: {title(cell)}: {one.seconds * 1e3:.3f} ms")
            if points:
                series.append(svg.Series(label, colour, points, titles=titles))
        yield f"<h3>{dtype}</h3>"
        yield svg.log_plot(series, x_label="FLOP per byte that must move", y_label="GFLOP/s")


def _heat_maps(record: Record) -> Iterator[str]:
    grid = [c for c in record.cells if set(c.axes) == {"chunk", "history"} and ours(c) is not None]
    if not grid:
        return
    yield "<h2>Chunk × history</h2><h3>Share of the floor reached, %</h3>"
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
        yield "<h3>Best peer's time by ours</h3>"
        yield svg.heat_map(lead, x_label="history", y_label="chunk", low=0.7, high=1.6, unit="×")


def _scaling(record: Record, colours: dict[str, str]) -> Iterator[str]:
    """Time over one size: cells whose only axis it is, in the same family of names, with the fit on the work."""
    families = scaling.families(record.cells)
    if not families:
        return
    yield (
        "<h2>Scaling</h2><p>Dashed: the floor. A cost that grows in proportion runs parallel to it on these axes. The "
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
        yield f"<h3>{escape(family)} over {escape(axis)}</h3>"
        yield svg.log_plot(series, x_label=axis, y_label="ms", height=320)
        yield f'<p class="dim">{escape(scaling.growth(cells, axis).sentence(axis))}.</p>'


def _cell(cell: Cell, colours: dict[str, str]) -> Iterator[str]:
    mine = ours(cell)
    yield f'<h3 id="{_anchor(cell)}">{escape(title(cell))}</h3>'
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
            f'<tr class="{"ours" if one is mine else ""}"><td>{escape(one.label)}</td><td>{_ms(one.seconds)}</td>'
            f"<td>{one.spread:.0%}</td><td>{_ms(one.best)}</td><td>{cell.flops / one.seconds / 1e9:.0f}</td>"
            f"<td>{cell.bytes / one.seconds / 1e9:.1f}</td><td>{cell.floor_s / one.seconds:.0%}</td><td>{lead}</td>"
            f"<td>{error}</td><td>{memory}</td><td>{sum(s.quiet for s in one.samples)}/{len(one.samples)}</td></tr>"
        )
    yield "</tbody></table>"
    limits = ", ".join(f"{name.replace('_', ' ')} {rate / 1e9:.4g} G{unit}" for name, rate, unit in _rates(cell))
    yield f'<p class="dim">{cell.flops / 1e9:.3g} GFLOP, {cell.bytes / 1e6:.3g} MB; {escape(limits)}; '
    yield f"{cell.buffers} input set(s)</p>"
    for one in cell.providers:
        if not one.samples:
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


def _anchor(cell: Cell) -> str:
    return escape(cell.key.replace("/", "-"))


def _dtypes(cell: Cell) -> str:
    return cell.dtype if cell.kv_dtype == cell.dtype else f"{cell.dtype}, KV {cell.kv_dtype}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
