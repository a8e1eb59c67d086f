"""Packed sequences over packed or paged keys."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import validate
from chunkattn.compat.contiguous_kv import PagedView, packed_segments
from chunkattn.compat.flash_attn.call import AttentionCall, Window, given, one_table
from chunkattn.compat.head_dim import check_head_dims, padded, require_equal
from chunkattn.compat.refusals import refuse_unless
from chunkattn.compat.scheduler_metadata import SchedulerMetadata
from chunkattn.compat.tensor_arguments import ANY, check_optional_tensors, check_per_sequence, check_tensors


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    page_table: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    s_aux: Tensor | None = None,
    out: Tensor | None = None,
    return_softmax_lse: bool = False,
    scheduler_metadata: SchedulerMetadata | None = None,
    fa_version: int | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention of packed sequences over packed or paged keys.

    Args:
        q: [T, Hq, D].
        k, v: [Tk, Hkv, D] and [Tk, Hkv, Dv], seen as a pool without a copy; or with a block table the pools [N, P, Hkv,
            D] and [N, P, Hkv, Dv].
        cu_seqlens_q: int32 [B+1].
        cu_seqlens_k: int32 [B+1]; with a block table only its differences count, and `seqused_k` can stand for it.
        max_seqlen_q: accepted; nothing depends on it.
        max_seqlen_k: at least the longest key sequence; needed without a block table.
        dropout_p: 0.
        softmax_scale: None is ``D ** -0.5``.
        causal: bottom-right aligned.
        window_size: keys beside the query (left, right), -1 or None = unlimited.
        softcap: 0 = off.
        alibi_slopes: fp32 [Hq] or [B, Hq]; the bias is -slope·|distance|. Where a query sees keys on its right, those
            are copied and attended in a second call; refused there for a sequence with more queries than keys.
        return_attn_probs: return (out, lse, empty) as FlashAttention 2 does.
        block_table, page_table: int32 [B, M], two names of one thing.
        seqused_q: int32 [B], how many of each sequence's queries count; the others' rows are 0, their lse -inf.
        seqused_k: int32 [B], key lengths instead of the differences of `cu_seqlens_k`.
        k_descale, v_descale: fp32 [], [1], [Hkv] or [B, Hkv] with equal rows; quantised pools.
        num_splits: KV splits, 0 = planned.
        s_aux: [Hq] sinks.
        out: [T, Hq, Dv] to write into.
        return_softmax_lse: return (out, lse), as vLLM's fork does.
        scheduler_metadata: from `get_scheduler_metadata` here.
        qv, q_descale, attention_chunk, sm_margin: only at their defaults.

    Returns:
        out [T, Hq, Dv], with lse [Hq, T] if asked for.

    Raises:
        UnsupportedError: an argument that can't be honoured, by name.
        ValueError, TypeError: as `chunkattn.attention`.

    Example:
        >>> import torch
        >>> from chunkattn.compat.flash_attn import flash_attn_varlen_func
        >>> q, k, v = torch.randn(3, 9, 8, 64).unbind()
        >>> ends = torch.tensor([0, 4, 9], dtype=torch.int32)
        >>> flash_attn_varlen_func(q, k, v, ends, ends, 5, 5, causal=True).shape
        torch.Size([9, 8, 64])
    """
    name = "flash_attn_varlen_func"
    refuse_unless(
        name,
        dropout_p=(dropout_p, 0.0),
        qv=(qv, None),
        q_descale=(q_descale, None),
        attention_chunk=(attention_chunk, 0),
        sm_margin=(sm_margin, 0),
    )
    table_name, table = one_table(block_table, page_table)
    keys, values = ("[Tk, Hkv, D]", "[Tk, Hkv, Dv]") if table is None else ("[N, P, Hkv, D]", "[N, P, Hkv, Dv]")
    check_tensors(q=(q, "[T, Hq, D]"), k=(k, keys), v=(v, values), cu_seqlens_q=(cu_seqlens_q, "[B+1]"))
    check_optional_tensors(
        cu_seqlens_k=(cu_seqlens_k, "[B+1]"),
        seqused_q=(seqused_q, "[B]"),
        seqused_k=(seqused_k, "[B]"),
        **{table_name: (table, "[B, M]")},
        k_descale=(k_descale, ANY),
        v_descale=(v_descale, ANY),
        s_aux=(s_aux, ANY),
        out=(out, ANY),
    )
    check_per_sequence(cu_seqlens_q.shape[0] - 1, seqused_q=seqused_q, seqused_k=seqused_k)
    if v.shape[:-1] != k.shape[:-1]:
        first = f"the first {'two' if table is None else 'three'} of k {list(k.shape[:-1])}"
        raise ValueError(f"v: expected {values} with {first}, got shape {list(v.shape)}")
    if seqused_k is not None:
        lengths = seqused_k
    elif cu_seqlens_k is not None:
        lengths = torch.diff(cu_seqlens_k)
    else:
        raise ValueError("cu_seqlens_k: expected a tensor where seqused_k is None, got None")
    head_dim, head_dim_v = q.shape[-1], v.shape[-1]
    require_equal("k", k, "q", q)
    check_head_dims(k=head_dim, v=head_dim_v)
    q, k, v = padded(q), padded(k), padded(v)
    if table is not None:
        view = PagedView(k, v, table.to(torch.int32))
    else:
        starts = given("cu_seqlens_k", cu_seqlens_k).to(torch.int32)
        view = packed_segments(k, v, starts, int(given("max_seqlen_k", max_seqlen_k)))
    num_tokens, rows = q.shape[0], None
    if seqused_q is not None:
        rows = _used_rows(cu_seqlens_q, seqused_q)
        q, cu_seqlens_q = q[rows], torch.nn.functional.pad(seqused_q.cumsum(0), (1, 0))
    result, lse = AttentionCall(
        name,
        q,
        view,
        cu_seqlens_q.to(torch.int32),
        lengths.to(torch.int32),
        softmax_scale=validate.softmax_scale(softmax_scale, head_dim),
        causal=causal,
        window=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        k_descale=k_descale,
        v_descale=v_descale,
        sinks=s_aux,
        num_splits=num_splits,
        plan=scheduler_metadata,
        names={
            "k_cache": "k",
            "v_cache": "v",
            "seq_lens": "cu_seqlens_k" if seqused_k is None else "seqused_k",
            "block_table": "cu_seqlens_k" if table is None else table_name,
        },
    ).run(out if rows is None and head_dim_v % 8 == 0 else None)
    result = result[..., :head_dim_v]
    if rows is not None:
        result, lse = _among_unused(result, lse, rows, num_tokens)
    if out is not None and out.data_ptr() != result.data_ptr():
        result = out.copy_(result)
    if return_attn_probs:
        return result, lse, result.new_empty(0)
    return (result, lse) if return_softmax_lse else result


def _used_rows(cu_seqlens_q: Tensor, seqused_q: Tensor) -> Tensor:
    """int64 [U], the rows of the queries that count."""
    counts = seqused_q.long()
    ends = counts.cumsum(0)
    offset = torch.arange(int(ends[-1]), device=counts.device) - torch.repeat_interleave(ends - counts, counts)
    return torch.repeat_interleave(cu_seqlens_q[:-1].long(), counts) + offset


def _among_unused(out: Tensor, lse: Tensor, rows: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """out [T, Hq, Dv] and lse [Hq, T] of [U, Hq, Dv] and [Hq, U] in their rows; 0 and -inf in the others."""
    all_out = out.new_zeros(num_tokens, *out.shape[1:])
    all_lse = lse.new_full((lse.shape[0], num_tokens), float("-inf"))
    all_out[rows], all_lse[:, rows] = out, lse
    return all_out, all_lse
