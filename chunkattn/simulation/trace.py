"""Request traces: when requests arrive and how long they are."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

MOONCAKE_BLOCK = 512  # tokens that a hash id of a Mooncake trace stands for


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        arrival: seconds after the first; NaN where the trace has lengths alone.
        num_prompt_tokens, num_output_tokens: lengths, at least 1.
        hash_ids: equal ids stand for equal prompt blocks of `block` tokens at equal places; empty = nothing shared.
        block: tokens a hash id stands for.
        client: who asks.
    """

    arrival: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()
    block: int = MOONCAKE_BLOCK
    client: str = ""


@dataclass(frozen=True)
class _CsvFormat:
    """Columns of a kind of CSV trace.

    Attributes:
        prompt, output: columns of the lengths.
        arrival: column of the arrival, None where there is none.
        seconds: its text as seconds.
    """

    prompt: str
    output: str
    arrival: str | None
    seconds: Callable[[str], float]


def _timestamp(text: str) -> float:
    """Seconds of an Azure timestamp, which has seven digits after the point."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + (float("0." + fraction) if fraction else 0.0)


_CSV_FORMATS = (
    _CsvFormat("ContextTokens", "GeneratedTokens", "TIMESTAMP", _timestamp),  # Azure 2023
    _CsvFormat("num_prefill_tokens", "num_decode_tokens", "arrived_at", float),  # Vidur
    _CsvFormat("prompt_size", "token_size", "arrival_timestamp", float),  # Splitwise's simulator
    _CsvFormat("num_prefill_tokens", "num_decode_tokens", None, float),  # lengths of ShareGPT, arXiv, BWB
)


def read_trace(path: Path) -> list[TraceRequest]:
    """Reads a trace, sorted by arrival; the first request arrives at 0.

    Known are the Azure 2023 CSV, Mooncake JSON lines with prefix hashes, the CSVs of Vidur and of Splitwise's
    simulator, and CSVs of lengths alone.

    Args:
        path: ``.jsonl`` or ``.csv``.

    Raises:
        ValueError: names file and line of what is wrong.
        FileNotFoundError: no such file.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"trace: expected UTF-8 text in {path}, got {error}") from None
    lines = text.splitlines()
    requests = list(_json_lines(path, lines) if path.suffix == ".jsonl" else _csv_lines(path, lines))
    if not requests:
        raise ValueError(f"trace: expected requests in {path}, got none")
    if math.isnan(requests[0].arrival):
        return requests
    first = min(request.arrival for request in requests)
    return sorted((replace(r, arrival=r.arrival - first) for r in requests), key=lambda r: r.arrival)


def _json_lines(path: Path, lines: Sequence[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"trace: expected one JSON object a line at {where}, got {error.msg}") from None
        if not isinstance(row, dict):
            raise ValueError(f"trace: expected one JSON object a line at {where}, got {type(row).__name__}")
        hashes = row.get("hash_ids", [])
        if not isinstance(hashes, list) or not all(type(value) is int for value in hashes):
            raise ValueError(f"trace: expected a list of integers as hash_ids at {where}, got {hashes!r}")
        prompt = _length(row, "input_length", where)
        if hashes and len(hashes) != -(-prompt // MOONCAKE_BLOCK):
            raise ValueError(
                f"trace: expected one hash id for each {MOONCAKE_BLOCK} of {prompt} tokens at {where}, "
                f"got {len(hashes)}"
            )
        arrival = _seconds(row, "timestamp", lambda text: float(text) / 1e3, where)
        client = str(row.get("client", ""))
        yield TraceRequest(arrival, prompt, _length(row, "output_length", where), tuple(hashes), client=client)


def _csv_lines(path: Path, lines: Sequence[str]) -> Iterator[TraceRequest]:
    reader = csv.reader(lines)
    header = next(reader, [])
    known = next((f for f in _CSV_FORMATS if {f.prompt, f.output, f.arrival or f.prompt} <= set(header)), None)
    if known is None:
        columns = "; ".join(", ".join(filter(None, (f.arrival, f.prompt, f.output))) for f in _CSV_FORMATS)
        raise ValueError(f"trace: expected a header with one of ({columns}) at {path}:1, got {', '.join(header)!r}")
    for values in reader:
        where = f"{path}:{reader.line_num}"
        if not values:
            continue
        if len(values) != len(header):
            raise ValueError(f"trace: expected {len(header)} columns at {where}, got {len(values)}")
        row = dict(zip(header, values))
        arrival = _seconds(row, known.arrival, known.seconds, where) if known.arrival else math.nan
        yield TraceRequest(arrival, _length(row, known.prompt, where), _length(row, known.output, where))


def _length(row: Mapping[str, Any], column: str, where: str) -> int:
    value = row.get(column)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not (1 <= number < math.inf and number.is_integer()):  # NaN fails too
        raise ValueError(
            f"trace: expected a whole number of tokens of at least 1 as {column} at {where}, got {value!r}"
        )
    return int(number)


def _seconds(row: Mapping[str, Any], column: str, seconds: Callable[[str], float], where: str) -> float:
    value = row.get(column)
    try:
        number = seconds(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"trace: expected a time as {column} at {where}, got {value!r}")
    return number


def scale(
    requests: Sequence[TraceRequest], *, rate: float = 1.0, length: float = 1.0, longest: int | None = None
) -> list[TraceRequest]:
    """Makes a trace denser or its requests shorter.

    Args:
        requests: a trace.
        rate: factor of the arrival rate.
        length: factor of all lengths; at least one token stays.
        longest: leaves out requests with more tokens than this after scaling.

    Raises:
        ValueError: a factor that is not positive or not finite.
    """
    for arg, factor in (("rate", rate), ("length", length)):
        if not 0 < factor < math.inf:
            raise ValueError(f"{arg}: expected a positive factor, got {factor}")
    scaled = []
    for request in requests:
        block = max(round(request.block * length), 1)
        prompt = max(round(request.num_prompt_tokens * length), 1)
        if request.hash_ids:
            prompt = min(prompt, block * len(request.hash_ids))
        output = max(round(request.num_output_tokens * length), 1)
        if longest is None or prompt + output <= longest:
            arrival = request.arrival / rate
            scaled.append(
                replace(request, arrival=arrival, num_prompt_tokens=prompt, num_output_tokens=output, block=block)
            )
    return scaled
