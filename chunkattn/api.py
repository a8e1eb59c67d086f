"""The public operators: defaults and allocation around the torch ops of `chunkattn.ops`."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import ops, validate
from chunkattn.args import AttentionArgs, PlanArgs
from chunkattn.backends.base import Support
from chunkattn.errors import UnsupportedError
from chunkattn.planning import choose
from chunkattn.types import AttentionSpec, Plan, Rope


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
            caches only.
        return_lse: also return the log-sum-exp of every row.
        out: [T, Hq, Dv] of q's dtype to write into, any strides with the last dim contiguous; None allocates.
        lse: fp32 [T, Hq] to write into (natural log), any strides; None allocates if `return_lse`.
        invariant: every token's row is bit-identical whatever its neighbours in the batch, their order, the
            padding, and however the prompt was cut into chunks.
        num_splits: KV splits of every request; None = planned.
        plan: from `plan` for the same lengths and options; None plans inside the call.
        workspace: uint8 [bytes] for partial states, at least ``plan.workspace_bytes``; None lets the backend use
            its own.
        backend: "reference", "cpu", …; None takes the best capable one.

    Returns:
        out [T, Hq, Dv], or (out, lse [T, Hq]) with `return_lse`. A row that sees no key: out 0, lse -inf (lse =
        sink with a sink).

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
    validate.flags(causal=causal, invariant=invariant)
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
        q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale,
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


def append_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    *,
    slot_mapping: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    rope: Rope | None = None,
    q: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Writes the step's keys and values into the paged pool, optionally with RoPE and quantisation, in one pass.

    Token r of a request goes to position ``seq_len - q_len + r``: slot ``position % P`` of page ``block_table[i,
    position // P]``.

    Args:
        k, v: [T, Hkv, D] and [T, Hkv, Dv] bf16, fp16 or fp32.
        k_cache, v_cache: the pool as in `attention`; written.
        block_table, cu_seqlens_q, seq_lens: as in `attention`. Padding tokens past ``cu_seqlens_q[B]`` are not
            written.
        slot_mapping: int32 or int64 [≤ T], ``page * P + slot`` of each token, -1 = skip; replaces the derived
            slots. Tokens past its end are not written; a token that is not written is not rotated either.
        k_scale, v_scale: fp32. [] and [Hkv] are read: stored = round(clamp(x / scale)), to nearest even. [N, P,
            Hkv] is written: every token and head gets scale = max|x| / largest stored value (dynamic
            quantisation). None is scale 1.
        rope: rotates k before it is stored, and q in place.
        q: [T, Hq, D] rotated in place; needs `rope`.
        backend: as in `attention`.

    Raises:
        ValueError, TypeError: as `attention`; nothing has been written. On the CPU also a slot outside the pool.

    Example:
        See `attention`.
    """
    validate.tensors(
        k=k,
        v=v,
        k_cache=k_cache,
        v_cache=v_cache,
        block_table=block_table,
        cu_seqlens_q=cu_seqlens_q,
        seq_lens=seq_lens,
    )
    cos = sin = positions = None
    interleaved = False
    if rope is not None:
        if not isinstance(rope, Rope):
            raise TypeError(f"rope: expected a chunkattn.Rope, got {type(rope).__name__}")
        cos, sin, positions, interleaved = rope.cos, rope.sin, rope.positions, rope.interleaved
    ops.append_kv(
        k,
        v,
        k_cache,
        v_cache,
        block_table,
        cu_seqlens_q,
        seq_lens,
        slot_mapping,
        k_scale,
        v_scale,
        q,
        cos,
        sin,
        positions,
        interleaved,
        backend,
    )


def merge_states(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Combines attention over two disjoint key sets: split KV, shared prefixes, context parallelism.

    out = (e^lse_a·out_a + e^lse_b·out_b) / (e^lse_a + e^lse_b). A state with lse -inf is neutral, even where its
    out is NaN; two of them give out 0, lse -inf. An lse of +inf is kept: it stands for an overflowed state and
    gives NaN in out.

    Args:
        out_a, out_b: [T, H, Dv] bf16, fp16 or fp32.
        lse_a, lse_b: fp32 [T, H], natural log.
        out, lse: where to write; may be those of a or b. None allocates.

    Returns:
        (out, lse).

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, §3.1.

    Example:
        >>> import torch, chunkattn
        >>> one, zero = torch.ones(1, 1, 8), torch.zeros(1, 1, 8)
        >>> eight, two = torch.full((1, 1), 8.0), torch.full((1, 1), 2.0)
        >>> out, lse = chunkattn.merge_states(one, eight.log(), zero, two.log())
        >>> round(out[0, 0, 0].item(), 6), round(lse.exp().item(), 4)
        (0.8, 10.0)
    """
    validate.tensors(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    out = torch.empty_like(out_a, memory_format=torch.contiguous_format) if out is None else out
    lse = torch.empty_like(lse_a, memory_format=torch.contiguous_format) if lse is None else lse
    ops.merge_states(out_a, lse_a, out_b, lse_b, out, lse, backend)
    return out, lse


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
            a sync. The cuda backend sizes its workspace by the shapes of the call: there they are T of `q` and M·P of
            the block table.

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
    args = PlanArgs(
        cu_seqlens_q,
        seq_lens,
        seq_lens.new_empty(0, dtype=torch.int64),
        num_q_heads,
        num_kv_heads,
        head_dim,
        head_dim if head_dim_v is None else head_dim_v,
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
    size = chosen.plan_workspace_bytes(args, max_tokens, max_seq_len)
    return Plan(words, args.backend or "", num_q_heads, num_kv_heads, size)


def copy_pages(cache: Tensor, source: Tensor, target: Tensor, *, backend: str | None = None) -> None:
    """Copies whole pages inside a pool, e.g. copy-on-write of a shared prefix.

    Args:
        cache: [N, …] any strides; written.
        source, target: int32 or int64 [n] page ids; no page may be a target twice or both source and target.

    Example:
        >>> import torch, chunkattn
        >>> pool = torch.arange(3.0).reshape(3, 1)
        >>> chunkattn.copy_pages(pool, torch.tensor([2]), torch.tensor([0]))
        >>> pool.flatten().tolist()
        [2.0, 1.0, 2.0]
    """
    validate.tensors(cache=cache, source=source, target=target)
    ops.copy_pages(cache, source, target, backend)


def gather_pages(cache: Tensor, pages: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Packs pages of a pool into one dense block, e.g. to swap them out or hand a prompt's KV to another worker.

    Args:
        cache: [N, …] any strides.
        pages: int32 or int64 [n].
        out: [n, …] to write into; None allocates.

    Returns:
        [n, …].

    Example:
        >>> import torch, chunkattn
        >>> chunkattn.gather_pages(torch.arange(3.0).reshape(3, 1), torch.tensor([2, 0])).flatten().tolist()
        [2.0, 0.0]
    """
    validate.tensors(cache=cache, pages=pages)
    validate.pages("cache", cache, (("pages", pages),))
    out = cache.new_empty(pages.shape[0], *cache.shape[1:]) if out is None else out
    ops.gather_pages(cache, pages, out, backend)
    return out


def scatter_pages(block: Tensor, cache: Tensor, pages: Tensor, *, backend: str | None = None) -> None:
    """Writes a dense block into pages of a pool, the inverse of `gather_pages`.

    Args:
        block: [n, …].
        cache: [N, …] any strides; written.
        pages: int32 or int64 [n], each at most once.

    Example:
        >>> import torch, chunkattn
        >>> pool = torch.zeros(3, 1)
        >>> chunkattn.scatter_pages(torch.ones(1, 1), pool, torch.tensor([1]))
        >>> pool.flatten().tolist()
        [0.0, 1.0, 0.0]
    """
    validate.tensors(block=block, cache=cache, pages=pages)
    ops.scatter_pages(block, cache, pages, backend)


def supports(spec: AttentionSpec, *, backend: str | None = None) -> Support:
    """Whether a problem can be served, here and now, by the named backend or by any.

    Example:
        >>> import torch, chunkattn
        >>> spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
        >>> bool(chunkattn.supports(spec))
        True
    """
    try:
        choose.backend(spec, backend)
    except UnsupportedError as error:
        return Support((str(error),))
    return Support()


def explain(spec: AttentionSpec) -> str:
    """The table of backends for a problem: which one is taken, with which configuration, and why the others are
    not.

    Example:
        >>> import torch, chunkattn
        >>> spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
        >>> print(chunkattn.explain(spec))  # doctest: +SKIP
        cpu        taken      avx512bf16, 2 threads, 384-row tiles
        reference  capable    eager PyTorch
    """
    lines, taken = [], False
    for name, support, configuration in choose.table(spec):
        state = "refuses" if not support else "capable" if taken else "taken"
        taken = taken or bool(support)
        lines.append(f"{name:<10} {state:<10} {configuration or '; '.join(support.reasons)}")
    return "\n".join(lines)


def workspace_bytes(
    spec: AttentionSpec, *, max_tokens: int, max_seq_len: int, num_splits: int | None = None, backend: str | None = None
) -> int:
    """A workspace of this many bytes suffices for every `attention` call within the maxima, whatever the mix.

    Args:
        max_tokens: most query tokens T of a call.
        max_seq_len: most KV tokens of a request (M·P of the block table).
        num_splits: as passed to `attention`.

    Example:
        >>> import torch, chunkattn
        >>> spec = chunkattn.AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 32, 8, 128, 128, 16)
        >>> chunkattn.workspace_bytes(spec, max_tokens=64, max_seq_len=128)
        0
    """
    splits = validate.num_splits(num_splits, spec.invariant)
    return choose.backend(spec, backend).workspace_bytes(spec, max_tokens, max_seq_len, splits)
