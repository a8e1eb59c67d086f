"""A read-only kernel on some of a GPU's multiprocessors: what one of them can pull from memory."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from chunkattn.bench import timing

_BYTES = 2 << 30
_BLOCK = 8192


@triton.jit
def read_kernel(source, sums, blocks, BLOCK: tl.constexpr):
    """Each program adds up its share of the blocks."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=4):
        total += tl.load(source + block.to(tl.int64) * BLOCK + lanes)
    tl.store(sums + tl.program_id(0), tl.sum(total))


def measure(device: torch.device) -> dict[str, Any]:
    """Rates by number of programs, one on a multiprocessor, and their ratio to a fair share."""
    source = torch.ones(_BYTES // 4, dtype=torch.int32, device=device)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    sums = torch.zeros(multiprocessors, dtype=torch.int32, device=device)
    blocks = source.numel() // _BLOCK
    rates = {}
    for programs in sorted({8, 16, 32, 48, 64, 96, multiprocessors}):
        # Few programs read less, so that a call stays short.
        some = max(programs, blocks * programs // multiprocessors)

        def call(programs: int = programs, some: int = some) -> None:
            read_kernel[(programs,)](source, sums, some, BLOCK=_BLOCK, num_warps=8)

        call()
        done = timing.window(call, seconds=0.15, min_calls=5, device=device)
        rates[programs] = some * _BLOCK * 4 / done.median_s
    fair = rates[multiprocessors] / multiprocessors
    return {
        "ran": True,
        "bytes_per_s": {str(programs): rate for programs, rate in rates.items()},
        "reach": {str(programs): rate / programs / fair for programs, rate in rates.items()},
    }
