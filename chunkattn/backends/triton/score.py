"""Score modifiers: from q·k to a logit in base 2. Order: scale, soft-cap, ALiBi."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tanh(x):
    """tanh to about 1e-7, from one exponential that cannot overflow; where it is small from its series, to 1e-7 of
    itself, since a large soft-cap makes small ones large again."""
    decay = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    magnitude = (1.0 - decay) / (1.0 + decay)
    square = x * x
    series = x + x * square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0)))
    return tl.where(tl.abs(x) < 0.125, series, tl.where(x < 0, -magnitude, magnitude))


@triton.jit
def modify_scores(products, scale, softcap, slope, q_pos, kv_pos, spec):
    """Logits [BM, BN] in base 2.

    Args:
        products: q·k [BM, BN] fp32.
        scale: softmax scale times the scale of K, a number or [1, BN].
        softcap: the cap, if the spec has one.
        slope: ALiBi slopes [BM] of the rows' heads, if the spec has them.
        q_pos, kv_pos: absolute positions [BM] and [BN].
    """
    if spec.has_softcap:
        logits = tanh(products * (scale / softcap)) * (softcap * LOG2E)
    else:
        logits = products * (scale * LOG2E)
    if spec.has_alibi:
        distance = (kv_pos[None, :] - q_pos[:, None]).to(tl.float32)
        logits += (slope * LOG2E)[:, None] * distance
    return logits
