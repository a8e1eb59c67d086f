"""The head of the report: where it was measured, how to read it, who took part, and one row a case."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from html import escape

from chunkattn.bench import providers
from chunkattn.bench.record import Cell, Measured, Record
from chunkattn.bench.table import groups, ours, ratio

_LEVEL = 0.03
"""Ratios this near to 1 are called level: two runs of one kernel differ by as much."""


def render(record: Record) -> Iterator[str]:
    """HTML in pieces.

    Args:
        record: what was measured.
    """
    yield from _origin(record)
    yield from _headline(record)
    yield from _summary(record)
    yield from _people(record)
    yield from _reading()


def anchor(cell: Cell) -> str:
    """The name of a case's place in the page."""
    return escape(cell.key.replace("/", "-"))


def milliseconds(seconds: float) -> str:
    """Four digits."""
    return f"{seconds * 1e3:.4g}"


def _origin(record: Record) -> Iterator[str]:
    for part in record.parts[:1]:
        facts = part.machine
        where = [facts.get("processor", ""), f"{facts.get('threads')} threads", *facts.get("gpus", [])]
        versions = ", ".join(f"{name} {version}" for name, version in record.parts[-1].versions.items())
        yield f"<p>{escape(part.started)} · {escape(', '.join(where))}<br>{escape(versions)}</p>"
    builds = dict.fromkeys(part.versions.get("commit", "unknown") for part in record.parts)
    if len(builds) > 1:
        yield f'<p class="warn">Measured over {len(builds)} builds: {escape(", ".join(builds))}.</p>'
    yield f'<details class="dim"><summary>{len(record.parts)} command(s)</summary>'
    for part in record.parts:
        build = part.versions.get("commit", "")
        facts_of = ", ".join(text for text in (part.started, f"{part.seconds:.0f} s", build) if text)
        yield f"<code>{escape(part.command)}</code> ({escape(facts_of)})<br>"
    yield "</details>"


def _best_peer(cell: Cell) -> Measured | None:
    return next((p for p in cell.measured() if p.provider not in providers.OURS), None)


def _headline(record: Record) -> Iterator[str]:
    """What the whole record says, in two sentences."""
    mine = [(cell, one) for cell in record.cells if (one := ours(cell)) is not None and cell.flops]
    if not mine:
        return
    shares = sorted(cell.floor_s / one.seconds for cell, one in mine)
    yield (
        f"<p><strong>{len(mine)} cases; ours takes between {1 / shares[-1]:.2f} and {1 / shares[0]:.2f} times the "
        f"machine's floor, {1 / statistics.median(shares):.2f} in the middle.</strong>"
    )
    leads = [ratio(one, peer) for cell, one in mine if (peer := _best_peer(cell)) is not None]
    if leads:
        ahead, behind = (sum(wanted(lead) for lead in leads) for wanted in (_is_ahead, _is_behind))
        yield (
            f" Against the best peer of each case it is ahead in {ahead} of {len(leads)}, level within {_LEVEL:.0%} in "
            f"{len(leads) - ahead - behind}, behind in {behind}: {min(leads):.2f}× to {max(leads):.2f}×, "
            f"{statistics.median(leads):.2f}× in the middle."
        )
    yield "</p>"


def _is_ahead(lead: float) -> bool:
    return lead > 1.0 + _LEVEL


def _is_behind(lead: float) -> bool:
    return lead < 1.0 - _LEVEL


def _summary(record: Record) -> Iterator[str]:
    against = any(_best_peer(cell) is not None for cell in record.cells)
    yield "<h2>Summary</h2><table><thead><tr><th>case</th><th>requests × query tokens @ history</th><th>dtype</th>"
    yield "<th>page</th><th>ours ms</th><th>spread</th><th>floor ms</th><th>of floor</th>"
    yield ("<th>best peer</th><th>its ms</th><th>ours is</th>" if against else "") + "</tr></thead><tbody>"
    for cell in record.cells:
        mine, best = ours(cell), _best_peer(cell)
        if mine is None:
            continue
        dtype = cell.dtype if cell.kv_dtype == cell.dtype else f"{cell.dtype}, KV {cell.kv_dtype}"
        yield (
            f'<tr><td><a href="#{anchor(cell)}">{escape(cell.name)}</a></td><td>{escape(groups(cell))}</td>'
            f"<td>{dtype}</td><td>{cell.page_size}</td><td>{milliseconds(mine.seconds)}</td><td>{mine.spread:.0%}</td>"
            f"<td>{milliseconds(cell.floor_s)}</td><td>{cell.floor_s / mine.seconds:.0%}</td>"
        )
        if best is not None:
            lead = ratio(mine, best)
            kind = "lead" if _is_ahead(lead) else "behind" if _is_behind(lead) else "level"
            yield f"<td>{escape(best.label)}</td><td>{milliseconds(best.seconds)}</td>"
            yield f'<td class="{kind}">{lead:.2f}×</td>'
        yield "</tr>"
    yield "</tbody></table>"


def _people(record: Record) -> Iterator[str]:
    """Every provider once: in how many cases it has a time, and why not in the others."""
    entries: dict[str, list[Measured]] = {}
    for cell in record.cells:
        for one in cell.providers:
            entries.setdefault(one.label, []).append(one)
    yield "<h2>Who took part</h2><table><thead><tr><th>provider</th><th>measured in</th>"
    yield '<th class="text">why not in the rest</th></tr></thead><tbody>'
    for label, found in entries.items():
        reasons = dict.fromkeys(f"{one.status}: {one.reason}" for one in found if not one.samples)
        yield (
            f"<tr><td>{escape(label)}</td><td>{sum(bool(one.samples) for one in found)} of {len(record.cells)}</td>"
            f'<td class="text">{escape("; ".join(reasons))}</td></tr>'
        )
    yield "</tbody></table>"


def _reading() -> Iterator[str]:
    yield (
        "<h2>How to read this</h2><p>Every provider computes the same step on the same random data; its output is "
        "compared with a float64 oracle before timing, on q and on −q, and again at the end of every timed window, "
        "before each call of which some query rows changed sign. A wrong one has no time here. Providers take turns in "
        "every round, in random order, each for a short window; a window in which other programs ran is set aside. "
        "Times are medians over windows; <em>spread</em> is their interquartile range; <em>ours is</em> is the median "
        "over rounds of the peer's time by ours, so that more than 1 is in our favour. Calls rotate over "
        "input sets larger together than the last-level cache. <em>Error</em> is the worst row in units of the budget "
        "that a correct kernel in that dtype may use; <em>MiB</em> is what one call takes beyond what it is "
        "given and what the provider keeps; <em>quiet</em> is windows without neighbours, of all.</p>"
        "<p>The <em>floor</em> is the larger of: exact "
        "floating-point operations of the visible pairs at the rate of a plain matmul in that dtype (on a CPU in fp32 "
        "if that is faster), and bytes that must be read or written once at the rate of a plain read of the same "
        "pages. Both rates are measured in "
        "the same rounds. No kernel can be much under it; what is left above it is what can still be gained.</p>"
    )
