"""What a run leaves behind: plain dataclasses, written as JSON that a person can read."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1

_SAMPLE = re.compile(r'\{\s+"median_s":[^{}]*\}')


@dataclass
class Sample:
    """One window: seconds of a call, whether the machine was quiet, and CPU seconds of a call over all threads."""

    median_s: float
    best_s: float
    calls: int
    quiet: bool
    cpu_s: float | None = None


@dataclass
class Measured:
    """One provider on one case.

    Attributes:
        provider, label: its key and its name in tables.
        status: "measured", "refused" (wrong or dishonest output), "unsupported", "missing", "failed" or "skipped" (no
            time left).
        reason: why it was not measured.
        samples: one a round, in round order.
        error: worst row error in row budgets.
        awake: share of the timed seconds in which the calling thread ran.
        peak_bytes: memory of a call beyond inputs, output and what the provider keeps.
        notes: what the reader must know beside the time.
    """

    provider: str
    label: str
    status: str
    reason: str = ""
    samples: list[Sample] = field(default_factory=list)
    error: float | None = None
    awake: float | None = None
    peak_bytes: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def counted(self) -> list[Sample]:
        """The quiet windows, or all if there was none."""
        return [s for s in self.samples if s.quiet] or self.samples

    @property
    def seconds(self) -> float:
        """Median over the counted windows of their medians; NaN if nothing was measured."""
        return statistics.median(s.median_s for s in self.counted) if self.samples else float("nan")

    @property
    def ceiling_seconds(self) -> float:
        """For a limit: as `seconds`, but where no window was quiet the best one, because a limit is an upper bound."""
        if any(s.quiet for s in self.samples):
            return self.seconds
        return min((s.median_s for s in self.samples), default=float("nan"))

    @property
    def best(self) -> float:
        """The fastest call."""
        return min((s.best_s for s in self.samples), default=float("nan"))

    @property
    def spread(self) -> float:
        """Interquartile range over the counted windows, relative to the median."""
        times = [s.median_s for s in self.counted]
        if len(times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return (high - low) / statistics.median(times)


@dataclass
class Cell:
    """One case: its facts, the machine's limits in its rounds, and every provider.

    Attributes:
        key: the case's identity over runs.
        suite, name, dtype, kv_dtype, page_size, layout: of the case.
        axes: chart coordinates.
        requests: [count, q_len, history] groups.
        heads: of the layer.
        flops, bytes, kv_bytes, exps: exact work.
        buffers: input sets that calls rotate over.
        threads: CPU threads of a call, 0 where it ran on a GPU or the file does not say.
        clocks_mhz: clock before and after the rounds, NaN where the system does not say.
        limits: rate by name, as measured in the rounds of this cell.
        floor_s, bound: overlap floor at those rates and what sets it.
        providers: ours and the peers.
    """

    key: str
    suite: str
    name: str
    dtype: str
    kv_dtype: str
    page_size: int
    layout: str
    axes: dict[str, float]
    requests: list[list[int]]
    heads: dict[str, Any]
    flops: int
    bytes: int
    kv_bytes: int
    exps: int
    buffers: int
    threads: int = 0
    clocks_mhz: list[float] = field(default_factory=list)
    limits: dict[str, Measured] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    floor_s: float = float("nan")
    bound: str = ""
    providers: list[Measured] = field(default_factory=list)

    def provider(self, name: str) -> Measured | None:
        """A provider's entry by key."""
        return next((p for p in self.providers if p.provider == name), None)

    def measured(self) -> list[Measured]:
        """Providers with a time, fastest first."""
        return sorted((p for p in self.providers if p.samples), key=lambda p: p.seconds)


@dataclass
class Part:
    """One process that added cells to the record.

    Attributes:
        command: as typed.
        started: local date and time, ISO 8601.
        seconds: how long it took.
        machine, versions, settings: where, with what, how.
    """

    command: str
    started: str
    seconds: float
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]


@dataclass
class Micro:
    """One micro-benchmark.

    Attributes:
        key: its identity over runs.
        label: what was timed.
        seconds, best_s: of a call, median and fastest over windows.
        samples: one a round.
    """

    key: str
    label: str
    samples: list[Sample] = field(default_factory=list)
    note: str = ""

    @property
    def seconds(self) -> float:
        """Median over the quiet windows."""
        chosen = [s for s in self.samples if s.quiet] or self.samples
        return statistics.median(s.median_s for s in chosen) if chosen else float("nan")


@dataclass
class Record:
    """A result file."""

    parts: list[Part] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    micro: list[Micro] = field(default_factory=list)
    schema: int = SCHEMA

    def cell(self, key: str) -> Cell | None:
        """A cell by its key."""
        return next((c for c in self.cells if c.key == key), None)

    def merge(self, other: Record) -> None:
        """Takes over another record's parts, and its cells in place of its own of the same key."""
        new = {c.key for c in other.cells}
        self.cells = [c for c in self.cells if c.key not in new] + other.cells
        timed = {m.key for m in other.micro}
        self.micro = [m for m in self.micro if m.key not in timed] + other.micro
        self.parts += other.parts

    def save(self, path: Path) -> None:
        """Writes `text`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """JSON, with the summary numbers beside the samples; a window a line, so that it can be read."""
        text = json.dumps(self.to_json(), indent=1)
        return _SAMPLE.sub(lambda found: " ".join(found.group().split()), text) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        data = dataclasses.asdict(self)
        for cell, plain in zip(self.cells, data["cells"], strict=True):
            for one, entry in zip(cell.providers, plain["providers"], strict=True):
                if one.samples:
                    entry["summary"] = _summary(one)
        for micro, entry in zip(self.micro, data["micro"], strict=True):
            entry["median_s"] = micro.seconds
        compact: dict[str, Any] = _compact(data)
        return compact

    @classmethod
    def load(cls, path: Path) -> Record:
        """Reads a result file.

        Raises:
            ValueError: it is none, or one of another schema.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: expected a result file of chunkattn bench, got no JSON ({error})") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            got = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"{path}: expected a result file of schema {SCHEMA}, got {got}")
        try:
            return cls(
                parts=[Part(**part) for part in data["parts"]],
                cells=[_cell(cell) for cell in data["cells"]],
                micro=[
                    Micro(m["key"], m["label"], [Sample(**s) for s in m["samples"]], m.get("note", ""))
                    for m in data["micro"]
                ],
            )
        except (AttributeError, KeyError, TypeError) as error:  # something is missing, or of another kind
            got = f"{type(error).__name__} {error}"
            raise ValueError(f"{path}: expected a whole result file of schema {SCHEMA}, got {got}") from error


def _summary(one: Measured) -> dict[str, float]:
    return {
        "median_ms": round(one.seconds * 1e3, 4),
        "best_ms": round(one.best * 1e3, 4),
        "spread": round(one.spread, 4),
        "quiet_windows": sum(s.quiet for s in one.samples),
        "windows": len(one.samples),
    }


def _measured(data: dict[str, Any]) -> Measured:
    rest = {k: v for k, v in data.items() if k not in ("samples", "summary")}
    return Measured(**rest, samples=[Sample(**s) for s in data["samples"]])


def _cell(data: dict[str, Any]) -> Cell:
    rest = {k: v for k, v in data.items() if k not in ("limits", "providers")}
    return Cell(
        **rest,
        limits={name: _measured(entry) for name, entry in data["limits"].items()},
        providers=[_measured(entry) for entry in data["providers"]],
    )


def _compact(value: Any) -> Any:
    """Floats to 6 digits, so that a committed file stays small."""
    if isinstance(value, float):
        return None if value != value else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _compact(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_compact(v) for v in value]
    return value
