"""What FlashAttention's functions share: their arguments turned into one call of `chunkattn.attention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

import chunkattn
from chunkattn.compat.contiguous_kv import PagedView
from chunkattn.compat.refusals import foreign_names, refuse
from chunkattn.compat.two_sided_alibi import two_sided_attention
from chunkattn.types import Plan

Window = Sequence[int | None]
T = TypeVar("T")
_OPTIONS = {
    "window": "window_size",
    "sinks": "s_aux",
    "k_scale": "k_descale",
    "v_scale": "v_descale",
    "plan": "scheduler_metadata",
}


def attend(
    name: str,
    q: Tensor,
    view: PagedView,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    window: Window | None,
    softcap: float,
    alibi_slopes: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    sinks: Tensor | None,
    num_splits: int,
    plan: Plan | None,
    out: Tensor | None = None,
    names: Mapping[str, str | None],
) -> tuple[Tensor, Tensor]:
    """out [T, Hq, Dv] and lse [Hq, T] of packed queries over a pool; errors blame the arguments of `names`."""
    beside = window_of(window)
    if plan is not None and not isinstance(plan, Plan):
        raise refuse(name, "scheduler_metadata", "expected what get_scheduler_metadata of this module returns")
    options: dict[str, Any] = {
        "softmax_scale": float(softmax_scale),
        "softcap": float(softcap),
        "k_scale": one_scale(name, "k_descale", k_descale),
        "v_scale": one_scale(name, "v_descale", v_descale),
        "num_splits": num_splits if num_splits > 0 else None,
    }
    sinks = None if sinks is None else sinks.float()
    looks_right = not causal and beside[1] != 0
    two_sided = alibi_slopes is not None and looks_right and bool((torch.diff(cu_seqlens_q) > 1).any())
    if two_sided and plan is not None:
        raise refuse(name, "scheduler_metadata", "expected None with alibi_slopes and causal=False")
    with foreign_names(**_OPTIONS, **names):
        if two_sided:
            assert alibi_slopes is not None
            result, lse = two_sided_attention(
                q, view, cu_seqlens_q, seq_lens, window=beside, alibi_slopes=alibi_slopes, sinks=sinks, **options
            )
            return result if out is None else out.copy_(result), lse.t().contiguous()
        lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
        result = chunkattn.attention(  # type: ignore[assignment]
            q,
            *view,
            cu_seqlens_q,
            seq_lens,
            causal=bool(causal),
            window=beside,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            plan=plan,
            out=out,
            lse=lse.t(),
            **options,
        )
    return result, lse


def window_of(window: Window | None) -> tuple[int, int]:
    if window is not None and len(window) != 2:
        raise ValueError(f"window_size: expected (left, right), got {window}")
    left, right = (-1, -1) if window is None else (-1 if side is None else int(side) for side in window)
    return max(left, -1), max(right, -1)


def one_table(block_table: Tensor | None, page_table: Tensor | None) -> Tensor | None:
    if block_table is not None and page_table is not None:
        raise ValueError("page_table: expected None with block_table, its other name, got a tensor")
    return block_table if page_table is None else page_table


def name_of_table(block_table: Tensor | None) -> str:
    return "page_table" if block_table is None else "block_table"


def name_of_rows(cache_batch_idx: Tensor | None) -> str:
    return "k_cache" if cache_batch_idx is None else "cache_batch_idx"


def given(argument: str, value: T | None) -> T:
    if value is None:
        raise ValueError(f"{argument}: expected a value, got None")
    return value


def batch_size_of(q: Tensor, cu_seqlens_q: Tensor | None) -> int:
    rank = 4 if cu_seqlens_q is None else 3
    if q.dim() != rank:
        shape = "[B, Sq, Hq, D]" if rank == 4 else "[T, Hq, D] with cu_seqlens_q"
        raise ValueError(f"q: expected {shape}, got shape {list(q.shape)}")
    return q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1


def one_scale(name: str, argument: str, descale: Tensor | None) -> Tensor | None:
    """One scale for the pool, [] or [Hkv]; theirs are [B, Hkv]."""
    if descale is None:
        return None
    if descale.dim() == 2:
        if descale.stride(0) and descale.shape[0] > 1 and not bool((descale == descale[:1]).all()):
            raise refuse(name, argument, "expected the same scales for every sequence, as the pool is shared")
        descale = descale[0]
    return (descale.reshape(()) if descale.numel() == 1 else descale).float()


def used_rows(cu_seqlens_q: Tensor, seqused_q: Tensor) -> Tensor:
    counts = seqused_q.long()
    ends = counts.cumsum(0)
    offset = torch.arange(int(ends[-1]), device=counts.device) - torch.repeat_interleave(ends - counts, counts)
    return torch.repeat_interleave(cu_seqlens_q[:-1].long(), counts) + offset
