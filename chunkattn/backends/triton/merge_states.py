"""merge_states: two partial (out, lse) of disjoint keys into one.

Bound by memory. A program takes a block of rows, where row r is head r % H of token r // H. Weights are computed in
fp64, once a row; rows of fp32 states are added up in fp64 as well, since their budget is half a unit in the last place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chunkattn.args import MergeArgs

_ELEMENTS = 1024  # of a block of rows
_WARPS = 1  # more would each read the weights


class _State(NamedTuple):
    """out [T, H, Dv] and lse [T, H]."""

    out: Tensor
    out_stride_token: int
    out_stride_head: int
    lse: Tensor
    lse_stride_token: int
    lse_stride_head: int


def merge_states(a: MergeArgs) -> None:
    """Runs the op on the device of `a.out`."""
    num_tokens, heads, dim = a.out.shape
    if num_tokens * heads == 0:
        return
    width = triton.next_power_of_2(dim)
    block_rows = max(1, _ELEMENTS // width)
    merge_kernel[(triton.cdiv(num_tokens * heads, block_rows),)](
        _state(a.out_a, a.lse_a),
        _state(a.out_b, a.lse_b),
        _state(a.out, a.lse),
        num_tokens,
        HEADS=heads,
        DIM=dim,
        WIDTH=width,
        BLOCK_ROWS=block_rows,
        WIDE=a.out.dtype == torch.float32,
        num_warps=_WARPS,
    )


def _state(out: Tensor, lse: Tensor) -> _State:
    return _State(out, out.stride(0), out.stride(1), lse, lse.stride(0), lse.stride(1))


@triton.jit
def _load_lse(state, tokens, head, mask):
    where = tokens * state.lse_stride_token + head * state.lse_stride_head
    return tl.load(state.lse + where, mask=mask, other=float("-inf")).to(tl.float64)


@triton.jit
def _share(state, tokens, head, lane, weight, total, mask, DIM: tl.constexpr, WIDE: tl.constexpr):
    """A state's part of the rows; exactly 0 where its weight is 0, whatever it holds."""
    where = tokens * state.out_stride_token + head * state.out_stride_head
    counts = (mask & (weight != 0.0))[:, None] & (lane < DIM)[None, :]
    x = tl.load(state.out + where[:, None] + lane[None, :], mask=counts, other=0.0)
    part = tl.where(total == 0.0, 0.0, weight / total)
    if WIDE:
        return tl.where(counts, x.to(tl.float64) * part[:, None], 0.0)
    else:
        return tl.where(counts, x.to(tl.float32) * part.to(tl.float32)[:, None], 0.0)


@triton.jit(do_not_specialize=["num_tokens"])
def merge_kernel(
    state_a, state_b, merged, num_tokens,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Row blocks; `merged` may be one of the two states."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    tokens, head = row // HEADS, row % HEADS
    mask = tokens < num_tokens
    lse_a, lse_b = _load_lse(state_a, tokens, head, mask), _load_lse(state_b, tokens, head, mask)
    # A NaN shows in the result, as it would in a sum.
    top = tl.where(lse_a > lse_b, lse_a, tl.where(lse_b != lse_b, lse_b, tl.where(lse_a != lse_a, lse_a, lse_b)))
    finite = tl.where(top == float("-inf"), 0.0, top)
    weight_a, weight_b = tl.exp(lse_a - finite), tl.exp(lse_b - finite)
    total = weight_a + weight_b
    lane = tl.arange(0, WIDTH)
    out = _share(state_a, tokens, head, lane, weight_a, total, mask, DIM, WIDE)
    out += _share(state_b, tokens, head, lane, weight_b, total, mask, DIM, WIDE)
    tl.debug_barrier()  # `merged` may be a state, and warps may hold copies of the same rows
    where = tokens * merged.out_stride_token + head * merged.out_stride_head
    lanes = mask[:, None] & (lane < DIM)[None, :]
    tl.store(merged.out + where[:, None] + lane[None, :], out.to(merged.out.dtype.element_ty), mask=lanes)
    lse = tl.where(top == float("inf"), top, finite + tl.log(total))
    where = tokens * merged.lse_stride_token + head * merged.lse_stride_head
    tl.store(merged.lse + where, lse.to(tl.float32), mask=mask)
