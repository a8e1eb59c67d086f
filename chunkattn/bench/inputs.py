"""Inputs of a case, so many that no cache is warm when calls rotate over them."""

from __future__ import annotations

import math

import torch

from chunkattn.bench import machine, work
from chunkattn.bench.case import BenchCase
from chunkattn.testing import AttentionInputs, build


def input_sets(case: BenchCase, device: torch.device | str, *, most: int, max_bytes: int) -> list[AttentionInputs]:
    """Sets of inputs, each with other data on its own pages, that together fill the largest CPU cache twice.

    Args:
        case: what a set holds.
        device: where the sets lie.
        most: sets, however small they are.
        max_bytes: of all sets together; one is always made.
    """
    size = max(1, work.count(case).bytes)
    wanted = math.ceil(2 * machine.last_level_cache() / size)
    number = max(1, min(wanted, most, max_bytes // size))
    return [
        build(case.attention_case(set_index=i), poison="zero", page_seed=case.seed + i, device=device)
        for i in range(number)
    ]
