"""A tile of packed query rows: who its rows are, what they can see, and the walk over a range of its keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from chunkattn.backends.triton.loader import (
    find_slots,
    load_one,
    load_scale,
    load_tile,
    load_token_scale,
    share,
    split_scale,
    widen,
)
from chunkattn.backends.triton.mask import full_range, keep, visible_range
from chunkattn.backends.triton.schedule import request_lengths
from chunkattn.backends.triton.score import modify_scores
from chunkattn.backends.triton.softmax import empty_state, holds_non_finite, is_finite, softmax_step


class Tile(NamedTuple):
    """Rows of one request and KV head; made on the device."""

    request: Any
    kv_head: Any
    token: Any  # [BM] int32, absolute row of q
    head: Any  # [BM] int32, query head
    row_valid: Any  # [BM] bool
    q_pos: Any  # [BM] int32, absolute position
    first_new: Any  # position of the request's first new token
    seen_begin: Any  # keys that some row can see
    seen_end: Any
    full_begin: Any  # keys that every row sees
    full_end: Any
    slope: Any  # [BM] fp32, 0 without ALiBi
    scale: Any  # softmax scale times K's scale of the whole head


@triton.jit
def make_tile(batch, k_pool, extras, numbers, request, kv_head, row_begin, BLOCK_M: tl.constexpr, spec):
    """The rows row_begin … row_begin + BM of a request and KV head; row = token_in_request * group + head_in_group."""
    q_begin, q_len, kv_len = request_lengths(batch, request)
    row = row_begin + tl.arange(0, BLOCK_M)
    row_end = q_len * spec.group
    row_valid = row < row_end
    own_token = row // spec.group
    head = kv_head * spec.group + row % spec.group
    first_new = kv_len - q_len
    first_pos = first_new + row_begin // spec.group
    last_pos = first_new + (tl.minimum(row_begin + BLOCK_M, row_end) - 1) // spec.group
    seen_begin, seen_end = visible_range(first_pos, last_pos, kv_len, numbers, spec)
    full_begin, full_end = full_range(first_pos, last_pos, first_new, kv_len, numbers, spec)
    slope = tl.zeros([BLOCK_M], tl.float32)
    if spec.has_alibi:
        slopes = extras.alibi_slopes + request.to(tl.int64) * extras.alibi_stride_request
        slope = tl.load(slopes + head.to(tl.int64) * extras.alibi_stride_head, mask=row_valid, other=0.0)
    scale = numbers.softmax_scale * load_scale(k_pool.scale, kv_head, spec.k_scale)
    return Tile(
        request,
        kv_head,
        q_begin + own_token,
        head,
        row_valid,
        first_new + own_token,
        first_new,
        seen_begin,
        seen_end,
        full_begin,
        full_end,
        slope,
        scale,
    )


@triton.jit
def add_non_finite(acc, tile, batch, v_pool, extras, numbers, begin, end, TARGET: tl.constexpr, spec):
    """Gives the NaN and infinities of V at the keys [begin, end) to the rows that see them, one key after another."""
    for position in range(begin, end):
        page, slot, v = load_one(
            v_pool, batch, tile.request, position, tile.kv_head, spec.head_dim_v, spec.width, spec
        )  # fmt: skip
        v = widen(v, TARGET, spec.storage).to(tl.float32)
        live = slot >= 0
        if spec.v_scale == "token":
            v = v * load_token_scale(v_pool.scale, page, slot, tile.kv_head, live, True)[:, None]
        kv_pos = position + tl.zeros([1], tl.int32)
        seen = keep(tile.q_pos, kv_pos, live, tile.token, tile.row_valid, tile.first_new, extras, numbers, spec)
        acc = tl.where(seen & ~is_finite(v), acc + v, acc)
    return acc


@triton.jit
def walk(
    maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
    begin, end, MASKED: tl.constexpr, CAREFUL: tl.constexpr, STAGES: tl.constexpr, spec,
):  # fmt: skip
    """Takes the keys [begin, end) into a state; begin is a multiple of BN, and so is end unless MASKED.

    `mass` [BM] is the total of the weights as they were rounded for the product with V, where that is kept apart.
    Where few columns of V do not average rounding away (`fine_weights`) what it added to the weights is multiplied too.

    A weight of 0 does not silence a NaN or infinity of V, so CAREFUL keeps them from rows that do not see their keys.
    """
    for start in tl.range(begin, end, spec.block_n, num_stages=STAGES):
        kv_pos = start + tl.arange(0, spec.block_n)
        live = (kv_pos >= tile.seen_begin) & (kv_pos < end)
        page, slot = find_slots(batch, tile.request, start, live, MASKED, spec)
        k = load_tile(k_pool, page, slot, tile.kv_head, live, MASKED, spec.head_dim, spec.depth, spec)
        k = widen(k, q.dtype, spec.storage)
        if spec.widen_once and q.shape[0] > 16:
            k = share(k)
        products = tl.dot(q, tl.trans(k), input_precision=spec.precision)
        scale = tile.scale
        if spec.k_scale == "token":
            scale = scale * load_token_scale(k_pool.scale, page, slot, tile.kv_head, live, MASKED)[None, :]
        logits = modify_scores(products, scale, numbers.softcap, tile.slope, tile.q_pos, kv_pos, spec)
        if MASKED:
            seen = keep(tile.q_pos, kv_pos, live, tile.token, tile.row_valid, tile.first_new, extras, numbers, spec)
            logits = tl.where(seen, logits, float("-inf"))
        maximum, total, weights, decay = softmax_step(maximum, total, logits)
        v = load_tile(v_pool, page, slot, tile.kv_head, live, MASKED, spec.head_dim_v, spec.width, spec)
        if spec.v_scale == "token":
            power, fraction = split_scale(load_token_scale(v_pool.scale, page, slot, tile.kv_head, live, MASKED))
            v = (widen(v, tl.float32, spec.storage) * power[:, None]).to(q.dtype)
            weights = weights * fraction[None, :]
        else:
            v = widen(v, q.dtype, spec.storage)
        rounded = weights.to(v.dtype)
        if spec.v_scale == "token" and not spec.fine_weights:
            mass = mass * decay + tl.sum(rounded.to(tl.float32) / fraction[None, :], 1)
        if spec.widen_once and q.shape[0] > 16:
            v = share(v)
        if CAREFUL:
            spoilt = holds_non_finite(v)
            v = tl.where(is_finite(v), v, 0.0)
        if spec.fine_weights:
            excess = (rounded.to(tl.float32) - weights).to(v.dtype)
            if spec.has_wgmma:
                # Lest the compiler compute some of them after the fence that wgmma needs before it reads registers.
                rounded, excess = share(rounded), share(excess)
        acc = tl.dot(rounded, v, acc * decay[:, None], input_precision=spec.precision)
        if spec.fine_weights:
            surplus = tl.dot(excess, v, input_precision=spec.precision)
            acc = tl.where(is_finite(acc), acc - surplus, acc)  # an excess of 0, or above it, makes NaN of an infinity
        if CAREFUL:
            if spoilt:
                first, last = tl.maximum(start, tile.seen_begin), tl.minimum(start + spec.block_n, end)
                acc = add_non_finite(acc, tile, batch, v_pool, extras, numbers, first, last, q.dtype, spec)
    return maximum, total, mass, acc


@triton.jit
def attend(q, tile, batch, k_pool, v_pool, extras, numbers, kv_begin, kv_end, BLOCK_M: tl.constexpr, spec):
    """The state of the visible keys of [kv_begin, kv_end); kv_begin is a multiple of BN.

    Few rows: one loop that masks every tile, which costs them nothing beside the memory. Many rows: a loop without
    any mask over what all rows see, and masked tiles before and after it.

    A NaN or infinity in V reaches the rows that see its key and no other: masked tiles take care of it, few rows look
    for its trace in their result.
    """
    begin = tl.maximum(kv_begin, tile.seen_begin // spec.block_n * spec.block_n)
    end = tl.minimum(kv_end, tile.seen_end)
    maximum, total, acc = empty_state(BLOCK_M, spec.width)
    mass = tl.zeros([BLOCK_M], tl.float32)
    if BLOCK_M <= 16:
        maximum, total, mass, acc = walk(
            maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
            begin, end, True, False, spec.num_stages, spec,
        )  # fmt: skip
        rows_see_alike = (tile.full_begin <= tl.maximum(begin, tile.seen_begin)) & (tile.full_end >= end)
        if not rows_see_alike:
            if holds_non_finite(acc):  # rare: once more from the start, with care
                maximum, total, acc = empty_state(BLOCK_M, spec.width)
                mass = tl.zeros([BLOCK_M], tl.float32)
                maximum, total, mass, acc = walk(
                    maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
                    begin, end, True, True, 1, spec,
                )  # fmt: skip
    else:
        free_begin = tl.maximum(begin, (tile.full_begin + spec.block_n - 1) // spec.block_n * spec.block_n)
        free_end = tl.maximum(tl.minimum(end, tile.full_end), 0) // spec.block_n * spec.block_n
        # None: the masked loop after it takes all.
        has_free = free_end > free_begin
        free_begin, free_end = tl.where(has_free, free_begin, begin), tl.where(has_free, free_end, begin)
        if spec.has_left:
            maximum, total, mass, acc = walk(
                maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
                begin, free_begin, True, True, 1, spec,
            )  # fmt: skip
        maximum, total, mass, acc = walk(
            maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
            free_begin, free_end, False, False, spec.num_stages, spec,
        )  # fmt: skip
        maximum, total, mass, acc = walk(
            maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
            free_end, end, True, True, 1, spec,
        )  # fmt: skip
    if spec.v_scale == "token" and not spec.fine_weights:
        # A scale's fraction makes even a weight of 1 inexact; divided by what it became, a lone key's row is exact.
        acc = acc * tl.where(mass > 0, total / mass, 1.0)[:, None]
    return maximum, total, acc
