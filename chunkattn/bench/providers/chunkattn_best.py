"""chunkattn itself, the best capable backend: one call whatever the mix, no plan made ahead."""

from __future__ import annotations

import torch

import chunkattn
from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers.base import Call
from chunkattn.testing import AttentionInputs

LABEL = "chunkattn"
INSTALL = ""
DEVICES = ("cpu", "cuda")


def missing() -> str | None:
    return None


def refuses(case: BenchCase) -> str | None:
    return None


def prepare(inputs: AttentionInputs) -> Call:
    out = torch.empty(*inputs.q.shape[:2], inputs.v_cache.shape[3], dtype=inputs.q.dtype, device=inputs.q.device)
    options = inputs.options()

    def run() -> torch.Tensor:
        chunkattn.attention(*inputs.batch(), **options, out=out)
        return out

    return run
