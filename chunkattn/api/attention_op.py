"""`attention`: defaults, allocation."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import ops, validate
from chunkattn.args import AttentionArgs
from chunkattn.types import Plan


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    invariant: bool = False,
    num_splits: int | None = None,
    plan: Plan | None = None,
    workspace: Tensor | None = None,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of one ragged batch (prefill chunks, decodes, speculative tokens mixed) over a paged KV cache.

    scores = scale·q·k → soft-cap → ALiBi → mask → softmax → ·V. Query row r of a request has absolute position
    ``seq_len - q_len + r`` (bottom-right causal); a decode is a chunk of length 1.

    Args:
        q: [T, Hq, D] bf16, fp16 or fp32; the requests' tokens one after another. Any strides with the last dim
            contiguous.
        k_cache, v_cache: [N, P, Hkv, D] and [N, P, Hkv, Dv], the paged pool with this step's tokens already in it
            (`append_kv`); q's dtype, float8_e4m3fn, float8_e5m2 or int8. Strides carry the layout (NHD, HND, fused
            pools).
        block_table: int32 [B, M], page of each logical page; columns past a request's last page may hold anything.
        cu_seqlens_q: int32 [B+1], prefix sums of the query lengths; a request may have 0. Tokens past
            ``cu_seqlens_q[B]`` are padding: out 0, lse -inf.
        seq_lens: int32 [B], KV lengths including this step's tokens; may be 0.
        softmax_scale: factor of q·k; None is ``D ** -0.5``.
        causal: a token sees only keys at positions up to its own.
        window: inclusive counts (left, right) of keys beside the query, -1 = unlimited. A model's sliding window
            of W tokens, which counts the token itself, is ``left = W - 1``.
        softcap: ``softcap * tanh(score / softcap)`` before masking; 0 = off.
        alibi_slopes: fp32 [Hq] or [B, Hq]; adds slope·(key position - query position). Press et al.,
            arXiv:2108.12409.
        sinks: fp32 [Hq], one logit a head that enters the softmax denominator once and has no value; `lse`
            includes it.
        tree_mask: int32 [T, words], speculative trees: bit j of word w in row t says that token t sees new token
            32·w + j of its own request (new token j is at position ``seq_len - q_len + j``). Applied besides
            causal and window; history stays visible.
        k_scale, v_scale: fp32 [], [Hkv] or [N, P, Hkv]: stored value times scale is the true value. Quantised
            caches only. A scale is a finite number above 0 (looked at on the CPU, elsewhere with ``CHUNKATTN_DEBUG=1``;
            those of single slots are not, since those of dead ones may hold anything). Slopes and sinks
            are looked at in debug mode only: a NaN or infinite one makes the rows of its head NaN or infinite, and no
            others (a sink of -inf is no sink).
        return_lse: also return the log-sum-exp of every row.
        out: [T, Hq, Dv] of q's dtype to write into, any strides with the last dim contiguous; None allocates. Like lse
            and workspace it must share no element with another argument, q included (views of one storage that lie
            apart, such as the parts of a packed QKV tensor, are fine).
        lse: fp32 [T, Hq] to write into (natural log), any strides; None allocates if `return_lse`.
        invariant: every token's row is bit-identical whatever its neighbours in the batch, their order, the
            padding, and however the prompt was cut into chunks.
        num_splits: KV splits of every request, at most 1024; None or 0 = planned.
        plan: from `plan` for the same lengths and options; None plans inside the call.
        workspace: uint8 [bytes] for partial states, at least ``plan.workspace_bytes``; None lets the backend use
            its own.
        backend: "reference", "cpu", …; None takes the best capable one.

    Returns:
        out [T, Hq, Dv], or (out, lse [T, Hq]) with `return_lse`. A row that sees no key: out 0, lse -inf (lse =
        sink with a sink). A row with a score of NaN or +inf: NaN, lse too.

    Raises:
        ValueError, TypeError: ``{arg}: expected …, got …``; nothing has been written.
        UnsupportedError: no backend (or not the named one) can serve the problem; lists the reasons.

    Example:
        >>> import torch, chunkattn
        >>> kv = chunkattn.PagedKV.allocate(num_pages=8, page_size=16, num_kv_heads=2, head_dim=64)
        >>> batch = chunkattn.Batch.from_lists(q_lens=[5, 1], kv_lens=[5, 20], pages=[[3], [6, 1]])
        >>> q, k, v = (torch.randn(6, heads, 64).bfloat16() for heads in (8, 2, 2))
        >>> _ = kv.k_cache.zero_(), kv.v_cache.zero_()  # the 19 earlier tokens of the second request
        >>> step = batch.block_table, batch.cu_seqlens_q, batch.seq_lens
        >>> chunkattn.append_kv(k, v, kv.k_cache, kv.v_cache, *step)
        >>> chunkattn.attention(q, kv.k_cache, kv.v_cache, *step).shape
        torch.Size([6, 8, 64])
    """
    if not (isinstance(q, Tensor) and isinstance(k_cache, Tensor) and isinstance(v_cache, Tensor)):
        validate.tensors(q=q, k_cache=k_cache, v_cache=v_cache)
    if not (isinstance(block_table, Tensor) and isinstance(cu_seqlens_q, Tensor) and isinstance(seq_lens, Tensor)):
        validate.tensors(block_table=block_table, cu_seqlens_q=cu_seqlens_q, seq_lens=seq_lens)
    if q.dim() != 3 or v_cache.dim() != 4:
        validate.ranks(q=(q, 3), v_cache=(v_cache, 4))
    left, right = validate.window(window)
    validate.flags(causal=causal, invariant=invariant, return_lse=return_lse)
    if out is None:
        out = q.new_empty(q.shape[0], q.shape[1], v_cache.shape[3])
    if lse is None and return_lse:
        lse = torch.empty(q.shape[0], q.shape[1], dtype=torch.float32, device=q.device)
    if plan is not None:
        backend = validate.plan_backend(plan, backend)
    arguments = (
        q,
        k_cache,
        v_cache,
        block_table,
        cu_seqlens_q,
        seq_lens,
        out,
        lse,
        alibi_slopes,
        sinks,
        tree_mask,
        k_scale,
        v_scale,
        None if plan is None else plan.words,
        workspace,
        validate.softmax_scale(softmax_scale, q.shape[2]),
        causal,
        left,
        right,
        softcap,
        invariant,
        validate.num_splits(num_splits, invariant),
        backend,
    )
    try:
        ops.attention(*arguments)
    except RuntimeError:
        # The dispatcher's own words for an argument of the wrong type run over several lines.
        validate.argument_types(AttentionArgs._make(arguments))
        raise
    return (out, lse) if return_lse else out  # type: ignore[return-value]
