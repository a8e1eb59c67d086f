"""A tile of packed query rows: who its rows are, what they can see, and the walk over a range of its keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from chunkattn.backends.triton.loader import find_slots, load_scale, load_tile, load_token_scale, split_scale, widen
from chunkattn.backends.triton.mask import full_range, keep, visible_range
from chunkattn.backends.triton.schedule import request_lengths
from chunkattn.backends.triton.score import modify_scores
from chunkattn.backends.triton.softmax import empty_state, softmax_step


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
def walk(
    maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
    begin, end, MASKED: tl.constexpr, STAGES: tl.constexpr, spec,
):  # fmt: skip
    """Takes the keys [begin, end) into a state; begin is a multiple of BN, and so is end unless MASKED.

    `mass` [BM] is the total of the weights as they were rounded for the product with V, where that is kept apart.
    """
    for start in tl.range(begin, end, spec.block_n, num_stages=STAGES):
        kv_pos = start + tl.arange(0, spec.block_n)
        live = (kv_pos >= tile.seen_begin) & (kv_pos < end)
        page, slot = find_slots(batch, tile.request, start, live, MASKED, spec)
        k = load_tile(k_pool, page, slot, tile.kv_head, live, MASKED, spec.head_dim, spec.depth, spec)
        k = widen(k, q.dtype, spec.storage)
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
            rounded = (weights * fraction[None, :]).to(v.dtype)
            mass = mass * decay + tl.sum(rounded.to(tl.float32) / fraction[None, :], 1)
        else:
            v = widen(v, q.dtype, spec.storage)
            rounded = weights.to(v.dtype)
        acc = tl.dot(rounded, v, acc * decay[:, None], input_precision=spec.precision)
    return maximum, total, mass, acc


@triton.jit
def attend(q, tile, batch, k_pool, v_pool, extras, numbers, kv_begin, kv_end, BLOCK_M: tl.constexpr, spec):
    """The state of the visible keys of [kv_begin, kv_end); kv_begin is a multiple of BN.

    Few rows: one loop that masks every tile, which costs them nothing beside the memory. Many rows: a loop without
    any mask over what all rows see, and masked tiles before and after it.
    """
    begin = tl.maximum(kv_begin, tile.seen_begin // spec.block_n * spec.block_n)
    end = tl.minimum(kv_end, tile.seen_end)
    maximum, total, acc = empty_state(BLOCK_M, spec.width)
    mass = tl.zeros([BLOCK_M], tl.float32)
    if BLOCK_M <= 16:
        maximum, total, mass, acc = walk(
            maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
            begin, end, True, spec.num_stages, spec,
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
                begin, free_begin, True, 1, spec,
            )  # fmt: skip
        maximum, total, mass, acc = walk(
            maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
            free_begin, free_end, False, spec.num_stages, spec,
        )  # fmt: skip
        maximum, total, mass, acc = walk(
            maximum, total, mass, acc, q, tile, batch, k_pool, v_pool, extras, numbers,
            free_end, end, True, 1, spec,
        )  # fmt: skip
    if spec.v_scale == "token":
        # A scale's fraction makes even a weight of 1 inexact; divided by what it became, a lone key's row is exact.
        acc = acc * tl.where(mass > 0, total / mass, 1.0)[:, None]
    return maximum, total, acc
