"""Joins the partial states that split items left, in split order, so that the bits depend on nobody's timing."""

from __future__ import annotations

import triton
import triton.language as tl

from chunkattn.backends.triton.epilogue import add_sink, finish, partial_pointers, store_rows
from chunkattn.backends.triton.schedule import (
    PARTIAL_ROWS,
    SEARCH_WIDTH,
    TABLES,
    plan_fits,
)
from chunkattn.backends.triton.softmax import empty_state, join

MERGE_ROWS = tl.constexpr(4)


@triton.jit
def find_requests(ends, numbers, num_requests, ROWS: tl.constexpr):
    """As `schedule.find_request`, for a vector of numbers."""
    stride = 1
    while stride * SEARCH_WIDTH < num_requests:
        stride *= SEARCH_WIDTH
    low = tl.zeros([ROWS], tl.int32)
    while stride > 0:
        index = low[:, None] + (tl.arange(0, SEARCH_WIDTH) + 1)[None, :] * stride - 1
        end = tl.load(ends + index, mask=index < num_requests, other=0x7FFFFFFFFFFFFFFF)
        low += tl.sum((end <= numbers[:, None]).to(tl.int32), 1) * stride
        stride = stride // SEARCH_WIDTH
    return low


@triton.jit(do_not_specialize=["num_requests"])
def merge_kernel(plan, expected_spec, batch, outputs, logsums, extras, partials, numbers, num_requests, spec):
    """Every program takes its share of the rows that have partial states."""
    if spec.check_plan:
        if not plan_fits(plan, expected_spec, batch, partials, num_requests, spec):
            return
    num_q_heads: tl.constexpr = spec.group * spec.num_kv_heads
    bases = plan + TABLES + 2 * (num_requests + 1)
    count = tl.load(plan + PARTIAL_ROWS)
    step = tl.num_programs(0) * MERGE_ROWS
    lanes = tl.arange(0, spec.width)
    for first in range(tl.program_id(0) * MERGE_ROWS, count, step):
        slot = (first + tl.arange(0, MERGE_ROWS)).to(tl.int64)
        inside = slot < count
        request = find_requests(bases + 1, tl.where(inside, slot, 0), num_requests, MERGE_ROWS)
        base = tl.load(bases + request)
        q_begin = tl.load(batch.cu_seqlens_q + request)
        q_len = tl.load(batch.cu_seqlens_q + request + 1) - q_begin
        # A request's slots are split-major; those of its first split stand for its rows.
        rows = (q_len * num_q_heads).to(tl.int64)
        row = slot - base
        mine = inside & (row < rows)
        row = tl.where(mine, row, 0)
        splits = (tl.load(bases + request + 1) - base) // tl.maximum(rows, 1)
        maximum, total, acc = empty_state(MERGE_ROWS, spec.width)
        for split in range(0, tl.max(tl.where(mine, splits, 0), 0)):
            live = mine & (split < splits)
            acc_ptr, maximum_ptr, total_ptr = partial_pointers(partials, base + split * rows + row, spec)
            mask = live[:, None] & (lanes < spec.head_dim_v)[None, :]
            maximum, total, acc = join(
                maximum, total, acc,
                tl.load(maximum_ptr, mask=live, other=float("-inf")),
                tl.load(total_ptr, mask=live, other=0.0),
                tl.load(acc_ptr, mask=mask, other=0.0),
            )  # fmt: skip
        head = (row % num_q_heads).to(tl.int32)
        if spec.has_sinks:
            sink = tl.load(extras.sinks + head.to(tl.int64) * extras.sinks_stride, mask=mine, other=0.0)
            maximum, total, acc = add_sink(maximum, total, acc, sink)
        out, lse = finish(maximum, total, acc)
        token = q_begin + (row // num_q_heads).to(tl.int32)
        store_rows(outputs, logsums, token, head, mine, out, lse, spec)
