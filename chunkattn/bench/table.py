"""Cells as tables in a terminal."""

from __future__ import annotations

import math
from typing import Any

from chunkattn.bench import cases, providers
from chunkattn.bench.compare import Change
from chunkattn.bench.record import Cell, Measured, Micro, Record
from chunkattn.extras import require

_MOST_GROUPS = 5


def ratio(one: Measured, other: Measured) -> float:
    """How many times longer `other` takes than `one`: the median over rounds in which both were quiet.

    Falls back on the ratio of medians where no round was quiet for both.
    """
    pairs = [b.median_s / a.median_s for a, b in zip(one.samples, other.samples, strict=False) if a.quiet and b.quiet]
    if len(pairs) < 3:
        return other.seconds / one.seconds
    pairs.sort()
    middle = len(pairs) // 2
    return pairs[middle] if len(pairs) % 2 else math.sqrt(pairs[middle - 1] * pairs[middle])


def ours(cell: Cell) -> Measured | None:
    """Our entry of a cell, if it has a time."""
    return next((p for p in cell.measured() if p.provider in providers.OURS), None)


def print_cell(console: Any, cell: Cell) -> None:
    """Prints one case: who took how long, at what rate, how far from the floor."""
    require("rich", extra="bench", purpose="chunkattn bench")
    from rich.table import Table

    mine = ours(cell)
    console.print(f"[bold]{title(cell)}[/]", soft_wrap=True)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("provider", "ms", "spread", "GFLOP/s", "GB/s", "of floor", "ours is", "error", "MiB", "quiet"):
        table.add_column(name, justify="left" if name == "provider" else "right", no_wrap=True)
    for one in cell.measured():
        times = "" if mine is None or one is mine else f"{ratio(mine, one):.2f}x"
        table.add_row(
            f"[bold]{one.label}[/]" if one is mine else one.label,
            f"{one.seconds * 1e3:.3f}",
            f"{one.spread:.0%}",
            f"{cell.flops / one.seconds / 1e9:.0f}",
            f"{cell.bytes / one.seconds / 1e9:.1f}",
            f"{cell.floor_s / one.seconds:.0%}",
            times,
            "" if one.error is None else f"{one.error:.2f}",
            "" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:.1f}",
            f"{sum(s.quiet for s in one.samples)}/{len(one.samples)}",
        )
    console.print(table)
    console.print(f"[dim]{_limits_line(cell)}[/]")
    for one in cell.providers:
        if not one.samples:
            console.print(f"[yellow]{one.label}: {one.status}[/]: {one.reason}", highlight=False, soft_wrap=True)
        for note in one.notes:
            console.print(f"[yellow]{one.label}[/]: {note}", highlight=False, soft_wrap=True)
    console.print()


def groups(cell: Cell) -> str:
    """The batch in short: count×query tokens@history a group, or sums where there are many."""
    if len(cell.requests) <= _MOST_GROUPS:
        return " + ".join(f"{count}×{q}@{history}" for count, q, history in cell.requests)
    requests, tokens, keys = (
        sum(count * part for count, part in zip((g[0] for g in cell.requests), parts, strict=True))
        for parts in ([1] * len(cell.requests), [g[1] for g in cell.requests], [g[1] + g[2] for g in cell.requests])
    )
    return f"{requests} requests, {tokens} tokens, {keys} keys"


def title(cell: Cell) -> str:
    """One line that says what the case is."""
    heads = cell.heads
    dims = f"{heads['head_dim']}" + ("" if heads["head_dim"] == heads["head_dim_v"] else f"/{heads['head_dim_v']}")
    kv = "" if cell.kv_dtype == cell.dtype else f", KV {cell.kv_dtype}"
    return (
        f"{cell.name}  {groups(cell)}, {heads['num_q_heads']}q/{heads['num_kv_heads']}kv heads of {dims}, "
        f"{cell.dtype}{kv}, pages of {cell.page_size}"
    )


def _limits_line(cell: Cell) -> str:
    matmul, read, copy = (cell.rates[name] / 1e9 for name in ("matmul", "paged_read", "copy"))
    return (
        f"floor {cell.floor_s * 1e3:.2f} ms ({cell.bound}): {cell.flops / 1e9:.1f} GFLOP at {matmul:.0f} GFLOP/s of "
        f"torch.mm, {cell.bytes / 1e6:.0f} MB at {read:.1f} GB/s of a plain read of the same pages; "
        f"stream copy {copy:.1f} GB/s"
    )


def print_micro(console: Any, entries: list[Micro]) -> None:
    """Prints the micro-benchmarks."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("what", "median µs", "best µs", "quiet", ""):
        table.add_column(name, justify="right" if "µs" in name or name == "quiet" else "left")
    for one in entries:
        best = min(s.best_s for s in one.samples)
        quiet = f"{sum(s.quiet for s in one.samples)}/{len(one.samples)}"
        table.add_row(one.label, f"{one.seconds * 1e6:.2f}", f"{best * 1e6:.2f}", quiet, one.note)
    console.print(table)


def print_record(console: Any, record: Record) -> None:
    """Prints everything in a record."""
    for cell in record.cells:
        print_cell(console, cell)
    if record.micro:
        print_micro(console, record.micro)


def print_changes(console: Any, changes: list[Change]) -> None:
    """Prints what two files say about each other."""
    from rich.table import Table

    colours = {"slower": "red", "faster": "green", "unclear": "yellow", "same": "dim"}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("case", "provider", "before ms", "after ms", "drift", "change", "noise", "verdict"):
        table.add_column(name, justify="left" if name in ("case", "provider", "verdict") else "right", no_wrap=True)
    for one in changes:
        table.add_row(
            one.key,
            one.provider,
            f"{one.before_s * 1e3:.3f}",
            f"{one.after_s * 1e3:.3f}",
            f"{one.drift - 1:+.1%}",
            f"{one.change:+.1%}",
            f"±{one.noise:.1%}",
            f"[{colours[one.verdict]}]{one.verdict}[/]",
        )
    console.print(table)


def print_choices(console: Any) -> None:
    """Prints the suites and the providers."""
    from rich.table import Table

    suites = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("cases", "number", "about"):
        suites.add_column(name)
    for name in cases.names():
        suite = cases.load(name)
        suites.add_row(name, str(len(suite.cases)), suite.about)
    console.print(suites)
    console.print()
    known = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("provider", "label", "device", "state"):
        known.add_column(name)
    for name in providers.MODULES:
        module = providers.load(name)
        reason = module.missing()
        devices = "/".join(module.DEVICES)
        state = "[green]here[/]" if reason is None else f"[yellow]missing[/]: {reason}; [bold]{module.INSTALL}[/]"
        known.add_row(name, module.LABEL, devices, state)
    console.print(known)
