"""Merging states whose log-sum-exps are base 2."""

from __future__ import annotations

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat.flashinfer.planned_step import LN2


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint key sets.

    Args:
        v_a, v_b: [nnz, H, D].
        s_a, s_b: fp32 [nnz, H], base 2.

    Returns:
        (V [nnz, H, D], S [nnz, H], base 2).
    """
    out, lse = chunkattn.merge_states(v_a, s_a.float() * LN2, v_b, s_b.float() * LN2)
    return out, lse / LN2


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    """Merges another state into (v, s).

    Args:
        v, s, v_other, s_other: as in `merge_state`; v and s are written.
        mask: bool [nnz]; rows where it is False stay as they are.
    """
    if mask is not None:
        # A state of weight 0 changes nothing.
        s_other = torch.where(mask.bool()[:, None], s_other.float(), float("-inf"))
    out, lse = merge_state(v, s, v_other, s_other)
    keep = torch.isneginf(s_other)[..., None]  # bit for bit: the merge would round its own input
    v.copy_(torch.where(keep, v, out))
    s.copy_(torch.where(keep[..., 0], s, lse))


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of many disjoint key sets.

    Args:
        v: [nnz, states, H, D].
        s: fp32 [nnz, states, H], base 2.

    Returns:
        (V [nnz, H, D], S [nnz, H], base 2); merged in fp32 and rounded once.
    """
    out = torch.zeros(v.shape[0], *v.shape[2:], dtype=torch.float32, device=v.device)
    lse = torch.full(out.shape[:2], float("-inf"), device=v.device)
    for i in range(v.shape[1]):
        chunkattn.merge_states(out, lse, v[:, i].float(), s[:, i].float() * LN2, out=out, lse=lse)
    return out.to(v.dtype), lse / LN2
