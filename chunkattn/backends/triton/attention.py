"""The attention kernel: a static grid of programs that take items from the plan's two queues until both are empty.

One launch serves any mix: an item is a decode tile (few packed rows) or a prefill tile, each compiled for its shape.
A free program takes from the queue of which more is left: decodes are bound by memory, prefill by arithmetic, and both
shall last until the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from chunkattn.backends.triton.epilogue import add_sink, finish, store_partial, store_rows
from chunkattn.backends.triton.loader import load_queries, load_scale
from chunkattn.backends.triton.schedule import DECODE_TOTAL, PREFILL_TOTAL, TABLES, find_item, plan_fits, takes_decode
from chunkattn.backends.triton.softmax import empty_state, join
from chunkattn.backends.triton.tile import attend, make_tile

FILL_ROWS = tl.constexpr(16)


@triton.jit
def finish_item(maximum, total, acc, tile, outputs, logsums, extras, spec):
    """The end of rows that have seen all their keys."""
    if spec.has_sinks:
        sink = tl.load(extras.sinks + tile.head.to(tl.int64) * extras.sinks_stride, mask=tile.row_valid, other=0.0)
        maximum, total, acc = add_sink(maximum, total, acc, sink)
    out, lse = finish(maximum, total, acc)
    store_rows(outputs, logsums, tile.token, tile.head, tile.row_valid, out, lse, spec)


@triton.jit
def compute_item(
    number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials, numbers,
    num_requests, BLOCK_M: tl.constexpr, spec,
):  # fmt: skip
    """Computes one item and stores its rows, or its partial state if the request is split."""
    request, kv_head, row_begin, kv_begin, kv_end, split, splits = find_item(
        plan, batch, number, num_requests, is_decode, numbers, spec
    )
    tile = make_tile(batch, k_pool, extras, numbers, request, kv_head, row_begin, BLOCK_M, spec)
    q = load_queries(queries, tile.token, tile.head, tile.row_valid, spec)
    if spec.invariant:
        # The same partial states, joined by the same function, whether one item walks them or several do.
        maximum, total, acc = empty_state(BLOCK_M, spec.width)
        for part_begin in range(kv_begin, tl.minimum(kv_end, tile.seen_end), spec.invariant_split):
            part_end = tl.minimum(part_begin + spec.invariant_split, kv_end)
            part_maximum, part_total, part_acc = attend(
                q, tile, batch, k_pool, v_pool, extras, numbers, part_begin, part_end, BLOCK_M, spec
            )
            maximum, total, acc = join(maximum, total, acc, part_maximum, part_total, part_acc)
    else:
        maximum, total, acc = attend(q, tile, batch, k_pool, v_pool, extras, numbers, kv_begin, kv_end, BLOCK_M, spec)
    if spec.v_scale == "tensor" or spec.v_scale == "head":
        acc = acc * load_scale(v_pool.scale, kv_head, spec.v_scale)
    if partials.ptr is None:
        finish_item(maximum, total, acc, tile, outputs, logsums, extras, spec)
    elif splits == 1:
        finish_item(maximum, total, acc, tile, outputs, logsums, extras, spec)
    else:
        q_begin = tl.load(batch.cu_seqlens_q + request)
        q_len = tl.load(batch.cu_seqlens_q + request + 1) - q_begin
        num_q_heads: tl.constexpr = spec.group * spec.num_kv_heads
        base = tl.load(plan + TABLES + 2 * (num_requests + 1) + request)
        row = (split * q_len + tile.token - q_begin).to(tl.int64)
        store_partial(partials, base + row * num_q_heads + tile.head, tile.row_valid, maximum, total, acc, spec)


@triton.jit(noinline=True)
def call_item(
    number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials, numbers,
    num_requests, BLOCK_M: tl.constexpr, spec,
):  # fmt: skip
    """`compute_item`, not inlined: else addresses of both classes are computed before the loop over items and kept."""
    compute_item(
        number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials, numbers,
        num_requests, BLOCK_M, spec,
    )  # fmt: skip


@triton.jit
def run_item(
    number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials, numbers,
    num_requests, BLOCK_M: tl.constexpr, spec,
):  # fmt: skip
    """`compute_item` in the way that suits the architecture."""
    if spec.calls_items:
        call_item(
            number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials, numbers,
            num_requests, BLOCK_M, spec,
        )  # fmt: skip
    else:
        compute_item(
            number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials, numbers,
            num_requests, BLOCK_M, spec,
        )  # fmt: skip


@triton.jit
def fill_rows(outputs, logsums, first_token, num_tokens, value, lse, spec):
    """Fills the rows of tokens [first_token, num_tokens), each program its share."""
    num_q_heads: tl.constexpr = spec.group * spec.num_kv_heads
    begin = first_token.to(tl.int64) * num_q_heads
    end = tl.cast(num_tokens, tl.int64) * num_q_heads
    step = tl.num_programs(0) * FILL_ROWS
    out = tl.full([FILL_ROWS, spec.width], value, tl.float32)
    logsum = tl.full([FILL_ROWS], lse, tl.float32)
    for first in range(begin + tl.program_id(0) * FILL_ROWS, end, step):
        row = first + tl.arange(0, FILL_ROWS)
        store_rows(outputs, logsums, row // num_q_heads, row % num_q_heads, row < end, out, logsum, spec)


@triton.jit(do_not_specialize=["num_requests", "num_tokens"])
def attention_kernel(
    plan, expected_spec, queues, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials, numbers,
    num_requests, num_tokens, spec,
):  # fmt: skip
    """Walks the plan's items.

    Args:
        plan: int64 words of a plan.
        expected_spec: int64, the plan's spec that this call needs; compared if the spec says so.
        queues: int64 [1], zero: items taken so far, decodes in the upper half and prefill in the lower.
    """
    if spec.check_plan:
        if not plan_fits(plan, expected_spec, batch, partials, num_requests, spec):
            # A stale plan must not pass unnoticed, and must not write past the workspace.
            fill_rows(outputs, logsums, tl.program_id(0) * 0, num_tokens, float("nan"), float("nan"), spec)
            return
    fill_rows(outputs, logsums, tl.load(batch.cu_seqlens_q + num_requests), num_tokens, 0.0, float("-inf"), spec)
    decode_total, prefill_total = tl.load(plan + DECODE_TOTAL), tl.load(plan + PREFILL_TOTAL)
    more = True
    while more:
        taken = tl.atomic_add(queues, 0, sem="relaxed")
        decode_left, prefill_left = decode_total - (taken >> 32), prefill_total - (taken & 0xFFFFFFFF)
        more = (decode_left > 0) | (prefill_left > 0)
        if more:
            is_decode = takes_decode(decode_left, decode_total, prefill_left, prefill_total, tl.num_programs(0))
            taken = tl.atomic_add(queues, tl.where(is_decode, 1 << 32, 1).to(tl.int64), sem="relaxed")
            number = tl.where(is_decode, taken >> 32, taken & 0xFFFFFFFF)
            if number < tl.where(is_decode, decode_total, prefill_total):
                if spec.block_m_decode == spec.block_m:
                    run_item(
                        number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials,
                        numbers, num_requests, spec.block_m, spec,
                    )  # fmt: skip
                elif is_decode:
                    run_item(
                        number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials,
                        numbers, num_requests, spec.block_m_decode, spec,
                    )  # fmt: skip
                else:
                    run_item(
                        number, is_decode, plan, batch, queries, k_pool, v_pool, outputs, logsums, extras, partials,
                        numbers, num_requests, spec.block_m, spec,
                    )  # fmt: skip
