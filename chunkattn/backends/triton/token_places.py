"""Where the tokens of a step go and stand: the slot of the pool, the position of the rotation."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Places(NamedTuple):
    """Where tokens go and stand."""

    slot_mapping: Tensor | None
    slot_stride: int
    block_table: Tensor
    table_stride_request: int
    table_stride_column: int
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    positions: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    rope_stride: int


@triton.jit
def _find_requests(ends, tokens, num_requests):
    """How many of the prefix sums ends[0 … B) are at most a token: the request that owns it, B for padding."""
    found = tokens * 0
    count = num_requests
    while count > 1:
        middle = count // 2
        end = tl.load(ends + found + middle - 1)
        found += tl.where(end <= tokens, middle, 0)
        count -= middle
    if num_requests > 0:
        found += (tl.load(ends + found) <= tokens).to(tl.int32)
    return found


@triton.jit
def locate(places, tokens, valid, num_slots, num_requests, num_pages, num_positions, page_size):
    """Where tokens are stored and where they stand.

    Returns:
        page (-1: not stored), slot in it, position (-1: not rotated); int64.
    """
    minus_one = tokens.to(tl.int64) * 0 - 1
    position = minus_one
    page, slot = minus_one, minus_one
    derived: tl.constexpr = places.slot_mapping is None or (places.cos is not None and places.positions is None)
    if derived:
        request = _find_requests(places.cu_seqlens_q + 1, tokens, num_requests)
        known = valid & (request < num_requests)
        request = tl.where(known, request, 0)
        end = tl.load(places.cu_seqlens_q + 1 + request, mask=known, other=0)
        kv_len = tl.load(places.seq_lens + request, mask=known, other=0)
        position = tl.where(known, (kv_len - end + tokens).to(tl.int64), -1)
    if places.slot_mapping is None:
        column = tl.maximum(position, 0) // page_size
        entry = request.to(tl.int64) * places.table_stride_request + column * places.table_stride_column
        page = tl.load(places.block_table + entry, mask=position >= 0, other=-1).to(tl.int64)
        slot = position - column * page_size
    else:
        mapped = valid & (tokens < num_slots)
        where = tokens.to(tl.int64) * places.slot_stride
        slots = tl.load(places.slot_mapping + where, mask=mapped, other=-1).to(tl.int64)
        page = tl.where(slots >= 0, tl.maximum(slots, 0) // page_size, -1)
        slot = slots - page * page_size
    page = tl.where(page < num_pages, page, -1)
    if places.cos is not None:
        if places.positions is not None:
            last = tl.load(places.cu_seqlens_q + num_requests)
            here = valid & (page >= 0) & (tokens < last)
            position = tl.load(places.positions + tokens, mask=here, other=-1)
        position = tl.where((page >= 0) & (position < num_positions), position, -1)
    return page, slot, position
