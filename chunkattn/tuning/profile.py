"""Recorded step times as a cost model.

Three kinds of file: the cost model that ``chunkattn serve-sim --calibration`` or ``chunkattn tune budget
--save-profile`` wrote (JSON); measured steps (CSV with `STEP_COLUMNS`); and Vidur's profile of linear layers (CSV with
``time_stats.<op>.median`` in ms a layer), which has no attention: that part comes from the device's peak figures.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from chunkattn.serving import StepWork, visible_pairs
from chunkattn.simulation.cost_model import CostModel, MeasuredStep

STEP_COLUMNS = ("prefill_tokens", "prefill_history", "decodes", "decode_context", "seconds")
_FOLDS = 5
# Of the peak, what attention reaches: prefills of compute, decodes of bandwidth.
_PREFILL_SHARE, _DECODE_SHARE = 0.55, 0.75


@dataclass(frozen=True)
class Device:
    """What a profile of linear layers does not say.

    Attributes:
        layers: of the model.
        peak_flops: dense 16-bit FLOP/s of one device.
        peak_bandwidth: bytes/s of its memory.
        tensor_parallel: devices a layer is split over.
        overhead: seconds of host time a step.
    """

    layers: int | None = None
    peak_flops: float | None = None
    peak_bandwidth: float | None = None
    tensor_parallel: int = 1
    overhead: float = 1e-3


def read_profile(path: Path, device: Device | None = None) -> CostModel:
    """Reads a profile; its held-out errors are of steps the fit had not seen, the returned fit has seen all.

    Args:
        path: ``.json`` or ``.csv``.
        device: for a profile of linear layers.

    Raises:
        ValueError: not a profile; names file and line.
        FileNotFoundError: no such file.
    """
    if path.suffix == ".json":
        return CostModel.read(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"profile: expected a table of comma-separated values in {path}, got {error}") from None
    if set(STEP_COLUMNS) <= set(header):
        steps = [_step(row, f"{path}:{number}") for number, row in enumerate(rows, 2)]
        return cross_validated(steps, facts={"profile": path.name, "measured_steps": len(steps)})
    if "num_tokens" in header and any(name.startswith("time_stats.") for name in header):
        return _linear_layers(path, rows, device or Device())
    raise ValueError(
        f"profile: expected columns {', '.join(STEP_COLUMNS)}, or num_tokens and time_stats.<op>.median, in {path}, "
        f"got {', '.join(header)!r}"
    )


def cross_validated(steps: Sequence[MeasuredStep], facts: Mapping[str, object] | None = None) -> CostModel:
    """Fits all steps; each is held out once, of a fit of the rest, for the error.

    Steps of the same counts are one, at their median time: a repetition of a step that was fitted is no held-out step.

    Raises:
        ValueError: fewer than ten different steps.
    """
    times: dict[StepWork, list[float]] = {}
    for step in steps:
        times.setdefault(step.work, []).append(step.seconds)
    distinct = [MeasuredStep(work, median(seconds)) for work, seconds in times.items()]
    if len(distinct) < 10:
        raise ValueError(f"profile: expected at least 10 different measured steps, got {len(distinct)}")
    order = list(range(len(distinct)))
    random.Random(0).shuffle(order)
    errors: list[float] = []
    for fold in range(_FOLDS):
        out = set(order[fold::_FOLDS])
        rest = [step for i, step in enumerate(distinct) if i not in out]
        errors += CostModel.fit(rest, [distinct[i] for i in sorted(out)]).held_out_errors
    return replace(CostModel.fit(distinct, [], facts=dict(facts or {})), held_out_errors=tuple(errors))


def _number(row: Mapping[str, str | None], column: str, where: str, least: float) -> float:
    text = row.get(column)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (value >= least and math.isfinite(value)):
        raise ValueError(f"profile: expected a number of at least {least:g} as {column} at {where}, got {text!r}")
    return value


def _step(row: Mapping[str, str | None], where: str) -> MeasuredStep:
    chunk, history, decodes, context = (int(_number(row, name, where, 0)) for name in STEP_COLUMNS[:4])
    seconds = _number(row, "seconds", where, 1e-9)
    if chunk + decodes == 0:
        raise ValueError(f"profile: expected a step with tokens at {where}, got none")
    requests = decodes + (chunk > 0)
    keys = decodes * context
    work = StepWork(
        chunk + decodes,
        chunk,
        requests,
        requests,
        visible_pairs(history, chunk),
        keys,
        keys + (history + chunk if chunk else 0),
    )
    return MeasuredStep(work, seconds)


def _linear_layers(path: Path, rows: Sequence[Mapping[str, str | None]], device: Device) -> CostModel:
    """Interpolates the measured layers at every measured number of tokens; attention by the peak figures."""
    if device.layers is None or device.peak_flops is None or device.peak_bandwidth is None:
        needed = {
            "--layers": device.layers,
            "--peak-flops": device.peak_flops,
            "--peak-bandwidth": device.peak_bandwidth,
        }
        raise ValueError(
            f"profile: expected the number of layers, peak FLOP/s and peak bandwidth ({', '.join(needed)}) beside "
            f"{path.name}, which holds one layer without attention, "
            f"got no {' and no '.join(option for option, value in needed.items() if value is None)}"
        )
    ways = device.tensor_parallel
    operations = [
        name for name in rows[0] if name and name.endswith(".median") and name.split(".")[1] not in ("emb", "attn")
    ]
    times: dict[int, list[float]] = {}
    facts: Mapping[str, str | None] = rows[0]
    for number, row in enumerate(rows, 2):
        where = f"{path}:{number}"
        if int(_number(row, "num_tensor_parallel_workers", where, 1)) != ways:
            continue
        tokens = int(_number(row, "num_tokens", where, 1))
        per_layer = sum(_number(row, name, where, 0) for name in operations if row[name])
        times.setdefault(tokens, []).append(per_layer * 1e-3)
    if len(times) < 10:
        raise ValueError(
            f"profile: expected at least 10 numbers of tokens for {ways} tensor-parallel workers in {path}, "
            f"got {len(times)}"
        )
    heads, kv_heads, hidden, vocabulary = (
        int(_number(facts, name, f"{path}:2", 1)) for name in ("n_head", "n_kv_head", "n_embd", "vocab_size")
    )
    bandwidth = device.peak_bandwidth * _DECODE_SHARE
    fixed = device.overhead + 2 * hidden * vocabulary / ways / bandwidth
    knots = sorted(times)
    layer = [median(times[tokens]) for tokens in knots]
    return CostModel(
        tuple(knots),
        tuple(device.layers * seconds + fixed for seconds in layer),
        seconds_per_pair=device.layers * 4 * hidden / ways / (device.peak_flops * _PREFILL_SHARE),
        seconds_per_key=device.layers * 4 * kv_heads * (hidden // heads) / ways / bandwidth,
        seconds_per_logit=0.0,
        seconds_per_request=0.0,
        held_out_errors=_interpolation_errors(knots, layer),
        facts={
            "profile": path.name,
            "measured_steps": len(knots),
            "attention": f"not in this profile: {_PREFILL_SHARE:.0%} of peak FLOP/s, {_DECODE_SHARE:.0%} of bandwidth",
        },
    )


def _interpolation_errors(knots: Sequence[int], seconds: Sequence[float]) -> tuple[float, ...]:
    """Of every inner number of tokens in turn, left out with the others of its fold and interpolated from the rest."""
    order = list(range(1, len(knots) - 1))
    random.Random(0).shuffle(order)
    errors = []
    for fold in range(_FOLDS):
        out = set(order[fold::_FOLDS])
        kept = [i for i in range(len(knots)) if i not in out]
        model = CostModel(tuple(knots[i] for i in kept), tuple(seconds[i] for i in kept), 0.0, 0.0, 0.0, 0.0)
        errors += [abs(model.seconds(StepWork(num_tokens=knots[i])) / seconds[i] - 1) for i in sorted(out)]
    return tuple(errors)
