"""append_kv: rows of K and V into their slots, rotated and quantised on the way; q is rotated in place.

Bound by memory: a row is read once and written once. A program takes a block of rows of one kind (K, V or q), where row
r is head r % H of token r // H, and finds the slots of its tokens itself. Products and sums are not contracted and
divisions are rounded, so the stored bytes are those of the reference backend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chunkattn.args import AppendArgs

_ELEMENTS = 4096  # of a block of rows
_WARPS = 4
_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_MODES = {0: "tensor", 1: "head", 3: "token"}


class _Rows(NamedTuple):
    """k, v or q: [T, H, D]."""

    ptr: Tensor | None
    stride_token: int
    stride_head: int


class _Pool(NamedTuple):
    """[N, P, Hkv, D], fp8 as uint8, and its scale: None | [] | [Hkv] | [N, P, Hkv] fp32."""

    ptr: Tensor
    stride_page: int
    stride_slot: int
    stride_head: int
    scale: Tensor | None
    scale_stride_page: int
    scale_stride_slot: int
    scale_stride_head: int


class _Places(NamedTuple):
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


class _Kind(NamedTuple):
    """What is compiled in for rows of one kind."""

    heads: Any
    dim: Any
    half: Any  # pairs that rotate, 0 for none
    format: Any  # "same" | "e4m3" | "e5m2" | "int8"
    mode: Any  # of the scale: "none" | "tensor" | "head" | "token"


def append_kv(a: AppendArgs) -> None:
    """Runs the op on the device of `a.k`."""
    num_tokens, kv_heads, dim = a.k.shape
    if num_tokens == 0:
        return
    half = 0 if a.rope_cos is None else a.rope_cos.shape[1]
    q_heads = 0 if a.q is None else a.q.shape[1]
    k_kind = _kind(kv_heads, dim, half, a.k_cache, a.k.dtype, a.k_scale)
    v_kind = _kind(kv_heads, a.v.shape[2], 0, a.v_cache, a.k.dtype, a.v_scale)
    q_kind = _constants(q_heads, dim, half, "same", "none")
    places = _Places(
        a.slot_mapping,
        0 if a.slot_mapping is None else a.slot_mapping.stride(0),
        a.block_table,
        a.block_table.stride(0),
        a.block_table.stride(1),
        a.cu_seqlens_q,
        a.seq_lens,
        a.rope_positions,
        a.rope_cos,
        a.rope_sin,
        0 if a.rope_cos is None else a.rope_cos.stride(0),
    )
    widest = triton.next_power_of_2(max(dim, a.v.shape[2]))
    block_rows = max(1, _ELEMENTS // widest)
    kv_blocks = triton.cdiv(num_tokens * kv_heads, block_rows)
    q_blocks = triton.cdiv(num_tokens * q_heads, block_rows)
    append_kernel[(2 * kv_blocks + q_blocks,)](
        _rows(a.k),
        _rows(a.v),
        _rows(a.q),
        _pool(a.k_cache, a.k_scale),
        _pool(a.v_cache, a.v_scale),
        places,
        0 if a.slot_mapping is None else a.slot_mapping.shape[0],
        num_tokens,
        a.seq_lens.shape[0],
        a.k_cache.shape[0],
        0 if a.rope_cos is None else a.rope_cos.shape[0],
        kv_blocks,
        a.k_cache.shape[1],
        k_kind,
        v_kind,
        q_kind,
        INTERLEAVED=a.rope_interleaved,
        BLOCK_ROWS=block_rows,
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )


def _rows(tensor: Tensor | None) -> _Rows:
    return _Rows(None, 0, 0) if tensor is None else _Rows(tensor, tensor.stride(0), tensor.stride(1))


def _pool(cache: Tensor, scale: Tensor | None) -> _Pool:
    if cache.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        cache = cache.view(torch.uint8)
    page, slot, head, _ = cache.stride()
    if scale is None or scale.dim() == 0:
        return _Pool(cache, page, slot, head, scale, 0, 0, 0)
    if scale.dim() == 1:
        return _Pool(cache, page, slot, head, scale, 0, 0, scale.stride(0))
    return _Pool(cache, page, slot, head, scale, *scale.stride())


def _kind(heads: int, dim: int, half: int, cache: Tensor, dtype: torch.dtype, scale: Tensor | None) -> _Kind:
    if cache.dtype == dtype:
        return _constants(heads, dim, half, "same", "none")
    return _constants(heads, dim, half, _FORMATS[cache.dtype], "none" if scale is None else _MODES[scale.dim()])


def _constants(*values: Any) -> _Kind:
    return _Kind(*(tl.constexpr(value) for value in values))


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
def _locate(places, tokens, valid, num_slots, num_requests, num_pages, num_positions, page_size):
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


@triton.jit
def _largest(FORMAT: tl.constexpr):
    return 127.0 if FORMAT == "int8" else (448.0 if FORMAT == "e4m3" else 57344.0)


@triton.jit
def _to_float8(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, ANCHOR: tl.constexpr):
    """Codes of fp32 values within the format's range, ties to even, NaN kept; the same on every architecture.

    Below the least normal number the step is constant: that of the fp32 numbers from ANCHOR on.
    """
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    dropped: tl.constexpr = 23 - MANTISSA
    even = (magnitude >> dropped) & 1
    normal = ((magnitude + ((1 << (dropped - 1)) - 1) + even) >> dropped) - ((127 - BIAS) << MANTISSA)
    small = (tl.abs(x) + ANCHOR).to(tl.int32, bitcast=True) - ((151 - MANTISSA - BIAS) << 23)
    code = tl.where(magnitude < ((128 - BIAS) << 23), small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _encode(x, FORMAT: tl.constexpr):
    """Stored form of fp32 values: clamped, rounded to the nearest with ties to even."""
    largest = _largest(FORMAT)
    x = tl.where(x > largest, largest, tl.where(x < -largest, -largest, x))
    if FORMAT == "e4m3":
        return _to_float8(x, 3, 7, 16384.0)
    elif FORMAT == "e5m2":
        return _to_float8(x, 2, 15, 128.0)
    else:
        x = tl.where(x != x, 0.0, x)
        return ((x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8)


@triton.jit
def _magnitude(x):
    """|x| with 0 for NaN, which must not spoil the scale of its neighbours."""
    return tl.where(x != x, 0.0, tl.abs(x))


@triton.jit
def _store(target, x, scale, mask, kind):
    """Stores values [R, L] that are in the dtype of their source."""
    if kind.format == "same":
        tl.store(target, x, mask=mask)
    else:
        y = x.to(tl.float32)
        if kind.mode != "none":
            y = tl.div_rn(y, scale[:, None] + tl.zeros_like(y))
        tl.store(target, _encode(y, kind.format), mask=mask)


@triton.jit
def _row_scale(pool, page, slot, head, stored, amax, kind):
    """Scale of each row: read, or made from the row and written."""
    if kind.mode == "tensor":
        return tl.load(pool.scale) + tl.zeros_like(amax)
    elif kind.mode == "head":
        return tl.load(pool.scale + head * pool.scale_stride_head, mask=stored, other=1.0)
    elif kind.mode == "token":
        factor = tl.where(amax > 0, tl.div_rn(amax, tl.zeros_like(amax) + _largest(kind.format)), 1.0)
        where = page * pool.scale_stride_page + slot * pool.scale_stride_slot + head * pool.scale_stride_head
        tl.store(pool.scale + where, factor, mask=stored)
        return factor
    else:
        return amax


@triton.jit
def _rotate(first, second, cos, sin, rotated):
    """Both lanes of each pair turned, in the dtype of the source; rows that do not rotate keep their bits."""
    one, other = first.to(tl.float32), second.to(tl.float32)
    turned = (one * cos - other * sin).to(first.dtype)
    other_turned = (other * cos + one * sin).to(first.dtype)
    return tl.where(rotated, turned, first), tl.where(rotated, other_turned, second)


@triton.jit
def _pairs(source, rows_valid, half, INTERLEAVED: tl.constexpr, BLOCK: tl.constexpr):
    """First and second lanes of the pairs of each row: [R, BLOCK] each."""
    pair = tl.arange(0, BLOCK)
    if INTERLEAVED:
        lane = tl.arange(0, 2 * BLOCK)
        both = tl.load(source[:, None] + lane[None, :], mask=rows_valid[:, None] & (lane < 2 * half)[None, :], other=0)
        return tl.split(both.reshape(both.shape[0], BLOCK, 2))
    else:
        mask = rows_valid[:, None] & (pair < half)[None, :]
        first = tl.load(source[:, None] + pair[None, :], mask=mask, other=0)
        return first, tl.load(source[:, None] + half + pair[None, :], mask=mask, other=0)


@triton.jit
def _store_pairs(target, first, second, scale, rows_valid, kind, INTERLEAVED: tl.constexpr, BLOCK: tl.constexpr):
    if INTERLEAVED:
        lane = tl.arange(0, 2 * BLOCK)
        both = tl.join(first, second).reshape(first.shape[0], 2 * BLOCK)
        mask = rows_valid[:, None] & (lane < 2 * kind.half)[None, :]
        _store(target[:, None] + lane[None, :], both, scale, mask, kind)
    else:
        pair = tl.arange(0, BLOCK)
        mask = rows_valid[:, None] & (pair < kind.half)[None, :]
        _store(target[:, None] + pair[None, :], first, scale, mask, kind)
        _store(target[:, None] + kind.half + pair[None, :], second, scale, mask, kind)


@triton.jit
def _move(
    source, target, pool, places, page, slot, head, position, moved, kind,
    IN_PLACE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Rotates, quantises and stores a block of rows: pairs first, then the lanes that do not rotate."""
    rest: tl.constexpr = kind.dim - 2 * kind.half
    amax = tl.zeros_like(head).to(tl.float32)
    if kind.half > 0:
        block: tl.constexpr = triton.next_power_of_2(kind.half)
        rotated = moved & (position >= 0)
        pair = tl.arange(0, block)
        angle = tl.maximum(position, 0)[:, None] * places.rope_stride + pair[None, :]
        angles = rotated[:, None] & (pair < kind.half)[None, :]
        cos = tl.load(places.cos + angle, mask=angles, other=1.0)
        sin = tl.load(places.sin + angle, mask=angles, other=0.0)
        first, second = _pairs(source, moved, kind.half, INTERLEAVED, block)
        first, second = _rotate(first, second, cos, sin, angles)
        amax = tl.maximum(tl.max(_magnitude(first.to(tl.float32)), 1), tl.max(_magnitude(second.to(tl.float32)), 1))
    if rest > 0 and not IN_PLACE:
        width: tl.constexpr = triton.next_power_of_2(rest)
        lane = tl.arange(0, width)
        mask = moved[:, None] & (lane < rest)[None, :]
        others = tl.load(source[:, None] + 2 * kind.half + lane[None, :], mask=mask, other=0)
        if kind.mode == "token":
            amax = tl.maximum(amax, tl.max(_magnitude(others.to(tl.float32)), 1))
    scale = _row_scale(pool, page, slot, head, moved, amax, kind)
    if IN_PLACE:
        tl.debug_barrier()  # warps may hold copies of the same lanes; none may still be reading them
    if kind.half > 0:
        _store_pairs(target, first, second, scale, moved, kind, INTERLEAVED, block)
    if rest > 0 and not IN_PLACE:
        _store(target[:, None] + 2 * kind.half + lane[None, :], others, scale, mask, kind)


@triton.jit
def _append_rows(
    block, rows, pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions, page_size, kind,
    IN_PLACE: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """One block of rows of K or V into the pool, or of q in its place."""
    row = block.to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    tokens = (row // kind.heads).to(tl.int32)
    head = row % kind.heads
    valid = tokens < num_tokens
    page, slot, position = _locate(places, tokens, valid, num_slots, num_requests, num_pages, num_positions, page_size)
    source = rows.ptr + tokens.to(tl.int64) * rows.stride_token + head * rows.stride_head
    if IN_PLACE:
        moved = valid & (position >= 0)
        target = source
    else:
        moved = valid & (page >= 0)
        target = pool.ptr + page * pool.stride_page + slot * pool.stride_slot + head * pool.stride_head
    _move(source, target, pool, places, page, slot, head, position, moved, kind, IN_PLACE, INTERLEAVED)


@triton.jit(
    do_not_specialize=[
        "num_slots",
        "num_tokens",
        "num_requests",
        "num_pages",
        "num_positions",
        "kv_blocks",
        "page_size",
    ]
)
def append_kernel(
    k, v, q, k_pool, v_pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions, kv_blocks,
    page_size, k_kind, v_kind, q_kind,
    INTERLEAVED: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Programs [0, kv_blocks) take K, the next as many V, the rest q."""
    block = tl.program_id(0)
    if block < kv_blocks:
        _append_rows(
            block, k, k_pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions, page_size,
            k_kind, False, INTERLEAVED, BLOCK_ROWS,
        )  # fmt: skip
    elif block < 2 * kv_blocks:
        _append_rows(
            block - kv_blocks, v, v_pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions,
            page_size, v_kind, False, INTERLEAVED, BLOCK_ROWS,
        )  # fmt: skip
    elif q.ptr is not None:
        _append_rows(
            block - 2 * kv_blocks, q, k_pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions,
            page_size, q_kind, True, INTERLEAVED, BLOCK_ROWS,
        )  # fmt: skip
