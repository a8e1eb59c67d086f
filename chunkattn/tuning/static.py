"""Compiles a job's kernels, without a GPU if need be, and leaves out those that cannot be good."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from chunkattn.args import AttentionArgs
from chunkattn.backends.device import Gpu
from chunkattn.bench.case import BenchCase
from chunkattn.testing import build
from chunkattn.tuning.kernels import Job
from chunkattn.tuning.search import Refused


@dataclass(frozen=True)
class Compiled:
    """What became of a setting's kernel.

    Attributes:
        values: the setting.
        figures: registers, spills, shared memory; None where it was not compiled.
        refused: why it is left out, "" where it is not.
    """

    values: Mapping[str, int]
    figures: Mapping[str, int] | None
    refused: str = ""


def compile_job(
    job: Job, device: Gpu, *, deadline: float = math.inf, progress: Callable[[float], None] = lambda share: None
) -> tuple[Job, list[Compiled]]:
    """Compiles every kernel of a job once.

    Returns:
        The job without the settings that are left out, and what became of each setting. Kernels for which no time was
        left are kept.

    Raises:
        Refused: the default's own kernel cannot be compiled.
    """
    args = _call(job.cases[0], job.key.backend)
    known: dict[object, Compiled] = {}
    results = []
    for number, values in enumerate(job.settings):
        kernel = job.module.kernel_of(values)
        if kernel not in known:
            late = number > 0 and time.monotonic() > deadline
            known[kernel] = Compiled(values, None) if late else _compile(job, values, args, device)
        results.append(replace(known[kernel], values=values))
        progress((number + 1) / len(job.settings))
    default = results[0].figures
    if default is None:
        raise Refused(f"the default's kernel cannot be compiled: {results[0].refused}")
    results = [results[0], *(_judge(one, default, device) for one in results[1:])]
    kept = tuple(one.values for one in results if not one.refused)
    return replace(job, settings=kept), results


def _compile(job: Job, values: Mapping[str, int], args: AttentionArgs, device: Gpu) -> Compiled:
    try:
        with job.module.with_settings(values):
            return Compiled(values, asdict(job.module.compiled(args, device)))
    except RuntimeError as error:
        return Compiled(values, None, str(error))


def _judge(one: Compiled, default: Mapping[str, int], device: Gpu) -> Compiled:
    found = one.figures
    if found is None:
        return one
    shared = found.get("shared_bytes", 0)  # not every backend's compiler tells
    if shared > device.shared_bytes:
        return replace(one, refused=f"needs {shared} bytes of shared memory of {device.shared_bytes}")
    if found["spill_bytes"] > default["spill_bytes"]:
        return replace(one, refused=f"spills {found['spill_bytes']} bytes, the default {default['spill_bytes']}")
    return one


def _call(case: BenchCase, backend: str) -> AttentionArgs:
    """A short call with a case's facts; only its dtypes and shapes are looked at."""
    inputs = build(case.but(requests=((1, 16, 16),)).attention_case(), poison="zero")
    out: Any = torch.empty(*inputs.q.shape[:2], inputs.v_cache.shape[3], dtype=inputs.q.dtype)
    absent, scales = (None,) * 4, (inputs.k_scale, inputs.v_scale)
    options = case.heads.head_dim**-0.5, True, -1, -1, 0.0, False, 0, backend
    return AttentionArgs._make((*inputs.batch(), out, *absent, *scales, None, None, *options))
