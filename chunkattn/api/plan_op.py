"""`plan`: allocation, and what the plan needs."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import ops, validate
from chunkattn.args import PlanArgs
from chunkattn.planning import choose
from chunkattn.types import Plan


def plan(
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    head_dim_v: int | None = None,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    invariant: bool = False,
    num_splits: int | None = None,
    layout: str = "NHD",
    max_tokens: int | None = None,
    max_seq_len: int | None = None,
    backend: str | None = None,
) -> Plan:
    """Cuts a step into balanced work items, on the device of the lengths and with no host sync; reused by every
    layer.

    Args:
        cu_seqlens_q, seq_lens: int32 [B+1] and [B], as in `attention`.
        num_q_heads, num_kv_heads, head_dim, head_dim_v, page_size, dtype, causal, window, invariant, num_splits:
            of the calls that will use the plan; whatever the plan depends on is compared there.
        layout: "NHD" or "HND" pools; decides what a decode item spans. Only speed depends on it.
        max_tokens, max_seq_len: maxima that bound `Plan.workspace_bytes` where the lengths cannot be read without
            a sync, or not at all (fake tensors). The cuda backend sizes its workspace by the shapes of the call: there
            they are T of `q` and M·P of the block table.

    Returns:
        A Plan.

    Example:
        >>> import torch, chunkattn
        >>> batch = chunkattn.Batch.from_lists([512, 1], [512, 2048], [[0], [1]])
        >>> facts = dict(num_q_heads=8, num_kv_heads=2, head_dim=64, page_size=2048, dtype=torch.bfloat16)
        >>> chunkattn.plan(batch.cu_seqlens_q, batch.seq_lens, **facts).num_q_heads
        8
    """
    validate.tensors(cu_seqlens_q=cu_seqlens_q, seq_lens=seq_lens)
    left, right = validate.window(window)
    validate.flags(causal=causal, invariant=invariant)
    splits = validate.num_splits(num_splits, invariant)
    head_dim_v = head_dim if head_dim_v is None else head_dim_v
    validate.counts(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        page_size=page_size,
        max_tokens=max_tokens,
        max_seq_len=max_seq_len,
    )
    validate.backend_name(backend)
    args = PlanArgs(
        cu_seqlens_q,
        seq_lens,
        seq_lens.new_empty(0, dtype=torch.int64),
        num_q_heads,
        num_kv_heads,
        head_dim,
        head_dim_v,
        page_size,
        dtype,
        causal,
        left,
        right,
        invariant,
        splits,
        layout,
        backend,
    )
    chosen = choose.backend(validate.plan(args), backend)
    words = torch.empty(chosen.plan_words(seq_lens.shape[0]), dtype=torch.int64, device=seq_lens.device)
    args = args._replace(words=words, backend=choose.name_of(chosen))
    ops.plan(*args)
    maxima = [None if most is None else min(most, validate.MAX_COUNT) for most in (max_tokens, max_seq_len)]
    size = chosen.plan_workspace_bytes(args, *maxima)
    return Plan(words, args.backend or "", num_q_heads, num_kv_heads, size)
