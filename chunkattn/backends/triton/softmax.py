"""The online softmax of rows, in base 2: one step over a tile of logits, and the join of two states.

A state is (maximum [BM], total [BM], acc [BM, width]): acc is the weighted sum of values, not yet divided by total.
Rows that have seen no key have maximum -inf, total 0, acc 0.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, §3.1.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def empty_state(BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """The state of rows that have seen no key."""
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    return maximum, tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M, WIDTH], tl.float32)


@triton.jit
def finite_or_zero(maximum):
    """A maximum to subtract: -inf - -inf would be NaN, and every weight below -inf is 0 anyway."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def is_finite(x):
    """Neither NaN nor infinite."""
    return tl.abs(x.to(tl.float32)) < float("inf")


@triton.jit
def holds_non_finite(x):
    """Whether any element of a matrix is NaN or infinite."""
    return tl.max(tl.max((~is_finite(x)).to(tl.int32), 1), 0) > 0


@triton.jit
def softmax_step(maximum, total, logits):
    """Takes a tile of logits in.

    Returns:
        the new maximum and total, the weights [BM, BN], and the decay [BM] that acc is due.
    """
    new_maximum = tl.maximum(maximum, tl.max(logits, 1))
    base = finite_or_zero(new_maximum)
    weights = tl.exp2(logits - base[:, None])
    decay = tl.exp2(maximum - base)
    return new_maximum, total * decay + tl.sum(weights, 1), weights, decay


@triton.jit
def join(maximum_a, total_a, acc_a, maximum_b, total_b, acc_b):
    """The state of two disjoint key sets. Joining with an empty state changes no bit of the other.

    Products and sums are fused explicitly, so that the bits do not depend on where the compiler finds it worthwhile.
    """
    maximum = tl.maximum(maximum_a, maximum_b)
    base = finite_or_zero(maximum)
    decay_a, decay_b = tl.exp2(maximum_a - base), tl.exp2(maximum_b - base)
    total = tl.fma(total_a, decay_a, total_b * decay_b)
    spread_a = tl.broadcast_to(decay_a[:, None], acc_a.shape)
    return maximum, total, tl.fma(acc_a, spread_a, acc_b * decay_b[:, None])
