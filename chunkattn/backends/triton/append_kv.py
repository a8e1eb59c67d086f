"""append_kv: rows of K and V into their slots, rotated and quantised on the way; q is rotated in place.

Bound by memory: a row is read once and written once, angles once a token. A program takes some heads of some tokens of
one kind (K, V or q) and finds the slots of its tokens itself. Products and sums are not contracted and divisions are
rounded, so the stored bytes are those of the reference backend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chunkattn.args import AppendArgs
from chunkattn.backends.triton.quantize import encode, largest, magnitude
from chunkattn.backends.triton.token_places import Places, locate

_BLOCK, _SMALL_BLOCK = 8192, 2048  # elements of a program's rows
_MANY_BLOCKS = 256  # of the larger kind: enough for any GPU
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


class _Kind(NamedTuple):
    """What is compiled in for rows of one kind."""

    heads: Any
    dim: Any
    block_tokens: Any  # of a program
    block_heads: Any
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
    block = _BLOCK if num_tokens * kv_heads * dim >= _BLOCK * _MANY_BLOCKS else _SMALL_BLOCK
    k_kind = _kind(block, kv_heads, dim, half, a.k_cache, a.k.dtype, a.k_scale)
    v_kind = _kind(block, kv_heads, a.v.shape[2], 0, a.v_cache, a.k.dtype, a.v_scale)
    q_kind = _constants(q_heads, dim, *_shape(block, q_heads, dim), half, "same", "none")
    places = Places(
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
    k_blocks, v_blocks, q_blocks = (_blocks(num_tokens, kind) for kind in (k_kind, v_kind, q_kind))
    append_kernel[(k_blocks + v_blocks + q_blocks,)](
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
        k_blocks,
        v_blocks,
        a.k_cache.shape[1],
        k_kind,
        v_kind,
        q_kind,
        INTERLEAVED=a.rope_interleaved,
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


def _kind(
    block: int, heads: int, dim: int, half: int, cache: Tensor, dtype: torch.dtype, scale: Tensor | None
) -> _Kind:
    if cache.dtype == dtype:
        return _constants(heads, dim, *_shape(block, heads, dim), half, "same", "none")
    mode = "none" if scale is None else _MODES[scale.dim()]
    # Rows whose scale is made of them wait for it in registers: half as many, or they spill.
    shape = _shape(block // 2 if mode == "token" else block, heads, dim)
    return _constants(heads, dim, *shape, half, _FORMATS[cache.dtype], mode)


def _shape(block: int, heads: int, dim: int) -> tuple[int, int]:
    """Tokens and heads of a program: all heads of a token if they fit, so that its angles are read once."""
    rows = max(1, block // triton.next_power_of_2(dim))
    block_heads = min(triton.next_power_of_2(max(heads, 1)), rows)
    return rows // block_heads, block_heads


def _blocks(num_tokens: int, kind: _Kind) -> int:
    """Programs of a kind."""
    return -(-num_tokens // int(kind.block_tokens.value)) * -(-int(kind.heads.value) // int(kind.block_heads.value))


def _constants(*values: Any) -> _Kind:
    return _Kind(*(tl.constexpr(value) for value in values))


@triton.jit
def _store(target, x, scale, rows_valid, kind, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """Stores values [R, L], in the dtype of their source, to lanes FIRST … FIRST + COUNT of rows `target` [R]."""
    lane = tl.arange(0, x.shape[1])
    if kind.format == "same":
        tl.store(target[:, None] + FIRST + lane[None, :], x, mask=rows_valid[:, None] & (lane < COUNT)[None, :])
    else:
        y = x.to(tl.float32)
        if kind.mode != "none":
            y = tl.div_rn(y, scale[:, None] + tl.zeros_like(y))
        # A dim of their own for as many lanes as one wide load brings: a thread that stored more would load with gaps.
        wide: tl.constexpr = 16 // (x.dtype.primitive_bitwidth // 8)
        group: tl.constexpr = wide if x.shape[1] > wide else x.shape[1]
        groups: tl.constexpr = x.shape[1] // group
        codes = tl.permute(tl.reshape(encode(y, kind.format), (x.shape[0], groups, group)), (1, 0, 2))
        lane = (tl.arange(0, groups) * group)[:, None, None] + tl.arange(0, group)[None, None, :]
        mask = rows_valid[None, :, None] & (lane < COUNT)
        tl.store(target[None, :, None] + FIRST + lane, codes, mask=mask)


@triton.jit
def _row_scale(pool, page, slot, head, stored, amax, kind):
    """Scale of each row: read, or made from the row and written."""
    if kind.mode == "tensor":
        return tl.load(pool.scale) + tl.zeros_like(amax)
    elif kind.mode == "head":
        return tl.load(pool.scale + head * pool.scale_stride_head, mask=stored, other=1.0)
    elif kind.mode == "token":
        factor = tl.where(amax > 0, tl.div_rn(amax, tl.zeros_like(amax) + largest(kind.format)), 1.0)
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
def _store_pairs(target, first, second, scale, rows_valid, kind, INTERLEAVED: tl.constexpr):
    if INTERLEAVED:
        both = tl.join(first, second).reshape(first.shape[0], 2 * first.shape[1])
        _store(target, both, scale, rows_valid, kind, 0, 2 * kind.half)
    else:
        _store(target, first, scale, rows_valid, kind, 0, kind.half)
        _store(target, second, scale, rows_valid, kind, kind.half, kind.half)


@triton.jit
def _of_rows(x, kind):
    """What is known of each token [T], for its heads: [T * H]."""
    return tl.reshape(
        tl.broadcast_to(x[:, None], (kind.block_tokens, kind.block_heads)), (kind.block_tokens * kind.block_heads,)
    )


@triton.jit
def _angles(table, position, stride, kind, outside: tl.constexpr, BLOCK: tl.constexpr):
    """cos or sin of each token's position, for its heads: [T * H, BLOCK]."""
    pair = tl.arange(0, BLOCK)
    mask = (position >= 0)[:, None] & (pair < kind.half)[None, :]
    found = tl.load(table + tl.maximum(position, 0)[:, None] * stride + pair[None, :], mask=mask, other=outside)
    found = tl.broadcast_to(found[:, None, :], (kind.block_tokens, kind.block_heads, BLOCK))
    return tl.reshape(found, (kind.block_tokens * kind.block_heads, BLOCK))


@triton.jit
def _append_rows(
    block, rows, pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions, page_size, kind,
    IN_PLACE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Some heads of some tokens: K or V rotated, quantised and put in their slots, or q rotated in its place."""
    head_blocks: tl.constexpr = (kind.heads + kind.block_heads - 1) // kind.block_heads
    tokens = block // head_blocks * kind.block_tokens + tl.arange(0, kind.block_tokens)
    heads = block % head_blocks * kind.block_heads + tl.arange(0, kind.block_heads)
    token_page, token_slot, token_position = locate(
        places, tokens, tokens < num_tokens, num_slots, num_requests, num_pages, num_positions, page_size
    )
    head = tl.broadcast_to(heads[None, :], (kind.block_tokens, kind.block_heads))
    head = tl.reshape(head, (kind.block_tokens * kind.block_heads,)).to(tl.int64)
    page, slot, position = _of_rows(token_page, kind), _of_rows(token_slot, kind), _of_rows(token_position, kind)
    source = rows.ptr + _of_rows(tokens, kind).to(tl.int64) * rows.stride_token + head * rows.stride_head
    if IN_PLACE:
        moved = (position >= 0) & (head < kind.heads)
        target = source
    else:
        moved = (page >= 0) & (head < kind.heads)
        target = pool.ptr + page * pool.stride_page + slot * pool.stride_slot + head * pool.stride_head

    # Pairs first, then the lanes that do not rotate.
    rest: tl.constexpr = kind.dim - 2 * kind.half
    amax = tl.zeros_like(head).to(tl.float32)
    if kind.half > 0:
        block_pairs: tl.constexpr = triton.next_power_of_2(kind.half)
        cos = _angles(places.cos, token_position, places.rope_stride, kind, 1.0, block_pairs)
        sin = _angles(places.sin, token_position, places.rope_stride, kind, 0.0, block_pairs)
        first, second = _pairs(source, moved, kind.half, INTERLEAVED, block_pairs)
        first, second = _rotate(first, second, cos, sin, (moved & (position >= 0))[:, None])
        amax = tl.maximum(tl.max(magnitude(first.to(tl.float32)), 1), tl.max(magnitude(second.to(tl.float32)), 1))
    if rest > 0 and not IN_PLACE:
        width: tl.constexpr = triton.next_power_of_2(rest)
        lane = tl.arange(0, width)
        mask = moved[:, None] & (lane < rest)[None, :]
        others = tl.load(source[:, None] + 2 * kind.half + lane[None, :], mask=mask, other=0)
        if kind.mode == "token":
            amax = tl.maximum(amax, tl.max(magnitude(others.to(tl.float32)), 1))
    scale = _row_scale(pool, page, slot, head, moved, amax, kind)
    if IN_PLACE:
        tl.debug_barrier()  # warps may hold copies of the same lanes; none may still be reading them
    if kind.half > 0:
        _store_pairs(target, first, second, scale, moved, kind, INTERLEAVED)
    if rest > 0 and not IN_PLACE:
        _store(target, others, scale, moved, kind, 2 * kind.half, rest)


@triton.jit(
    do_not_specialize=[
        "num_slots", "num_tokens", "num_requests", "num_pages", "num_positions", "k_blocks", "v_blocks", "page_size"
    ]
)  # fmt: skip
def append_kernel(
    k, v, q, k_pool, v_pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions, k_blocks, v_blocks,
    page_size, k_kind, v_kind, q_kind, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """The first programs take K, the next V, the rest q."""
    block = tl.program_id(0)
    if block < k_blocks:
        _append_rows(
            block, k, k_pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions, page_size,
            k_kind, False, INTERLEAVED,
        )  # fmt: skip
    elif block < k_blocks + v_blocks:
        _append_rows(
            block - k_blocks, v, v_pool, places, num_slots, num_tokens, num_requests, num_pages, num_positions,
            page_size, v_kind, False, INTERLEAVED,
        )  # fmt: skip
    elif q.ptr is not None:
        _append_rows(
            block - k_blocks - v_blocks, q, k_pool, places, num_slots, num_tokens, num_requests, num_pages,
            num_positions, page_size, q_kind, True, INTERLEAVED,
        )  # fmt: skip
