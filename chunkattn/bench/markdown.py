"""A record's summary as a Markdown table, for a README."""

from __future__ import annotations

from collections.abc import Iterator

from chunkattn.bench import providers, scaling
from chunkattn.bench.record import Cell, Record
from chunkattn.bench.table import ours, ratio, title


def render(record: Record) -> str:
    """Where and with what, one row a case with every peer's time as a multiple of ours, growth with size, calls."""
    return "\n".join([*_origin(record), *_cases(record), *_scaling(record), *_micro(record)]) + "\n"


def _origin(record: Record) -> Iterator[str]:
    if record.parts:
        first, last = record.parts[0], record.parts[-1]
        where = f"{first.machine.get('processor')}, {first.machine.get('threads')} threads"
        yield f"{where}; {first.started} to {last.started};"
        yield ", ".join(f"{name} {version}" for name, version in last.versions.items()) + "."
        yield ""


def _cases(record: Record) -> Iterator[str]:
    peers: dict[str, str] = {}
    for cell in record.cells:
        for one in cell.measured():
            if one.provider not in providers.OURS:
                peers[one.provider] = one.label
    yield f"| case | ours ms (spread) | of floor | bound | {' | '.join(peers.values())} |"
    yield f"|---|---|---|---|{'---|' * len(peers)}"
    for cell in record.cells:
        mine = ours(cell)
        if mine is None:
            continue
        times = []
        for name in peers:
            peer = cell.provider(name)
            known = peer is not None and peer.samples
            times.append(f"{peer.seconds * 1e3:.4g} ms, {ratio(mine, peer):.2f}×" if peer and known else "–")
        yield (
            f"| {title(cell)} | {mine.seconds * 1e3:.4g} ({mine.spread:.0%}) | {cell.floor_s / mine.seconds:.0%} | "
            f"{_bound(cell)} | {' | '.join(times)} |"
        )


def _bound(cell: Cell) -> str:
    if cell.bound == "compute":
        return f"{cell.rates['matmul'] / 1e9:.0f} GFLOP/s mm"
    return f"{cell.rates['paged_read'] / 1e9:.1f} GB/s paged read"


def _scaling(record: Record) -> Iterator[str]:
    families = scaling.families(record.cells)
    if families:
        yield ""
    for (family, axis), cells in families.items():
        sizes = f"{cells[0].axes[axis]:g} to {cells[-1].axes[axis]:g}"
        yield f"* {family} over {axis}, {sizes}. {scaling.growth(cells, axis).sentence(axis)}."


def _micro(record: Record) -> Iterator[str]:
    if not record.micro:
        return
    yield ""
    yield "| call | median µs | best µs | |"
    yield "|---|---|---|---|"
    for one in record.micro:
        best = min(s.best_s for s in one.samples)
        yield f"| {one.label} | {one.seconds * 1e6:.1f} | {best * 1e6:.1f} | {one.note} |"
