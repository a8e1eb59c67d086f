"""The machine's own rates, as calls that are timed in the same rounds as the providers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.testing import AttentionInputs

_MATMUL = 2048
_COPY_ELEMENTS = 1 << 25  # 128 MiB each way, several times a last-level cache
_EXP_ELEMENTS = 1 << 20
_ROW_BYTES = 2048


@dataclass(frozen=True)
class Limit:
    """One rate.

    Attributes:
        name: key in the record.
        unit: what one call does `amount` of.
        amount: operations or bytes of a call.
        calls: each does it once; more than one rotate over buffers.
    """

    name: str
    unit: str
    amount: float
    calls: list[Callable[[], object]]


def matmul(dtype: torch.dtype, device: torch.device, *, size: int | None = None) -> Limit:
    """Square matmul in a dtype, by default of size 2048 (1024 for one thread, 8192 on a GPU).

    On a CPU in fp32 if that is faster: Intel's cores without AMX multiply floats at twice the rate of bf16, and what is
    stored in 16 bits may be multiplied as floats.
    """
    if size is None:
        alone = torch.get_num_threads() == 1
        size = 4 * _MATMUL if device.type != "cpu" else _MATMUL // 2 if alone else _MATMUL
    factors = [torch.randn(size, size, device=device) for _ in range(2)]
    dtypes = (dtype, torch.float32) if device.type == "cpu" and dtype != torch.float32 else (dtype,)
    calls = [functools.partial(torch.mm, *(factor.to(each) for factor in factors)) for each in dtypes]
    fastest = min(calls, key=_shortest) if len(calls) > 1 else calls[0]
    return Limit("matmul", "FLOP/s", 2.0 * size**3, [fastest])


def _shortest(call: Callable[[], object]) -> float:
    """Seconds of the shortest of a few calls."""

    def once() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return min(once() for _ in range(3))


def copy(device: torch.device, *, elements: int | None = None) -> Limit:
    """Stream copy of float32, by default of 128 MiB (1 GiB on a GPU); counts bytes read and written."""
    if elements is None:
        elements = _COPY_ELEMENTS if device.type == "cpu" else 8 * _COPY_ELEMENTS
    source = torch.zeros(elements, device=device)
    target = torch.empty_like(source)
    return Limit("copy", "B/s", 2.0 * source.numel() * 4, [lambda: target.copy_(source)])


def exponentials(device: torch.device) -> Limit:
    """torch.exp in fp32 on a tensor that fits a cache."""
    source = -torch.rand(_EXP_ELEMENTS, device=device)
    target = torch.empty_like(source)
    return Limit("exp", "exp/s", float(source.numel()), [lambda: torch.exp(source, out=target)])


def paged_read(sets: list[AttentionInputs]) -> Limit:
    """Reads every page of the batch once, in block-table order, and adds it up.

    `embedding_bag` adds rows in registers; on a Zen 4 it reads as fast as a loop of 64-byte loads written by hand.
    """
    readers = [_reader(inputs) for inputs in sets]
    return Limit("paged_read", "B/s", float(readers[0][1]), [call for call, _ in readers])


def _reader(inputs: AttentionInputs) -> tuple[Callable[[], object], int]:
    """A call that reads the pages of one set, and the bytes it reads."""
    bags: list[tuple[Tensor, Tensor, Tensor]] = []
    size = 0
    for pool in (inputs.k_cache, inputs.v_cache):
        pages = _pages_in_order(inputs)
        flat = torch.empty(0, dtype=torch.uint8, device=pool.device).set_(pool.untyped_storage())
        page_bytes = pool.shape[1] * pool.shape[2] * pool.shape[3] * pool.element_size()
        row = next(r for r in (_ROW_BYTES, 1024, 512, 256, 128, 64, 32, 16, 8, 4) if page_bytes % r == 0)
        words = flat[: len(flat) // row * row].view(torch.float32).view(-1, row // 4)
        rows = (pages[:, None] * (page_bytes // row) + torch.arange(page_bytes // row, device=pool.device)).flatten()
        sums = 8 * max(1, torch.get_num_threads()) if pool.device.type == "cpu" else 8192
        step = max(1, len(rows) // sums)
        bags.append((rows, words, torch.arange(0, max(1, len(rows)), step, device=pool.device)))
        size += len(pages) * page_bytes

    def read() -> list[Tensor]:
        return [torch.nn.functional.embedding_bag(rows, words, offsets, mode="sum") for rows, words, offsets in bags]

    return read, size


def _pages_in_order(inputs: AttentionInputs) -> Tensor:
    page_size = inputs.k_cache.shape[1]
    counts = [-(-length // page_size) for length in inputs.seq_lens.tolist()]
    rows = [inputs.block_table[request, :n].long() for request, n in enumerate(counts)]
    pages = torch.cat(rows) if rows else inputs.block_table.new_empty(0).long()
    return pages[pages >= 0]  # pages outside a window are nobody's
