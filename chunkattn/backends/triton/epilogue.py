"""The end of a row: sink, division, log-sum-exp, and where results go."""

from __future__ import annotations

import triton
import triton.language as tl

from chunkattn.backends.triton.score import LOG2E
from chunkattn.backends.triton.softmax import finite_or_zero

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def add_sink(maximum, total, acc, sink):
    """Takes one more logit [BM] (natural) into the denominator, with no value behind it."""
    logit = sink * LOG2E
    top = tl.maximum(maximum, logit)
    base = finite_or_zero(top)
    decay = tl.exp2(maximum - base)
    return top, total * decay + tl.exp2(logit - base), acc * decay[:, None]


@triton.jit
def finish(maximum, total, acc):
    """(out [BM, width], lse [BM], natural) of a state; 0 and -inf where no key was seen."""
    empty = total == 0.0
    safe = tl.where(empty, 1.0, total)
    out = tl.where(empty[:, None], 0.0, acc / safe[:, None])
    lse = tl.where(empty, float("-inf"), (maximum + tl.log2(safe)) * LN2)
    return out, lse


@triton.jit
def store_rows(outputs, logsums, token, head, row_valid, out, lse, spec):
    """Writes out [BM, width] and lse [BM] of absolute `token` and query `head` where rows are valid."""
    lanes = tl.arange(0, spec.width)
    offset = token.to(tl.int64) * outputs.stride_token + head.to(tl.int64) * outputs.stride_head
    mask = row_valid[:, None] & (lanes < spec.head_dim_v)[None, :]
    tl.store(outputs.ptr + offset[:, None] + lanes[None, :], out.to(outputs.ptr.dtype.element_ty), mask=mask)
    if logsums.ptr is not None:
        place = token.to(tl.int64) * logsums.stride_token + head.to(tl.int64) * logsums.stride_head
        tl.store(logsums.ptr + place, lse, mask=row_valid)


@triton.jit
def partial_pointers(partials, slot, spec):
    """Where the partial state of `slot` [BM] (int64) lies: out [BM, width], maximum [BM], total [BM]."""
    lanes = tl.arange(0, spec.width)
    capacity = tl.cast(partials.capacity, tl.int64)
    maxima = partials.ptr + capacity * spec.head_dim_v
    return partials.ptr + (slot * spec.head_dim_v)[:, None] + lanes[None, :], maxima + slot, maxima + capacity + slot


@triton.jit
def store_partial(partials, slot, row_valid, maximum, total, acc, spec):
    """Leaves a split's state for the merge."""
    mask = row_valid[:, None] & (tl.arange(0, spec.width) < spec.head_dim_v)[None, :]
    acc_ptr, maximum_ptr, total_ptr = partial_pointers(partials, slot, spec)
    tl.store(acc_ptr, acc, mask=mask)
    tl.store(maximum_ptr, maximum, mask=row_valid)
    tl.store(total_ptr, total, mask=row_valid)
