"""What `attention` accepts."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.args import AttentionArgs, attention_spec
from chunkattn.types import DTYPES, AttentionSpec
from chunkattn.validate.batch import batch
from chunkattn.validate.options import num_splits, window_counts
from chunkattn.validate.plan_op import plan_words
from chunkattn.validate.pool import head_dims, pools, scales
from chunkattn.validate.sentences import bad, bad_dtype, bad_shape
from chunkattn.validate.tensor import INT32, contiguous_last, fp32_vector, no_gradients, on_device, written

_FP32 = torch.finfo(torch.float32)


def attention(a: AttentionArgs) -> AttentionSpec:
    """Checks one attention call and returns its facts.

    Raises:
        ValueError: a shape, stride, device or value is wrong.
        TypeError: a dtype is wrong.
    """
    q, k_cache, out = a.q, a.k_cache, a.out
    if q.dim() != 3:
        bad_shape("q", q, "[T, Hq, D]")
    dtype, device = q.dtype, q.device
    if dtype not in DTYPES:
        bad_dtype("q", q, "bfloat16, float16 or float32")
    no_gradients(
        q=q,
        k_cache=k_cache,
        v_cache=a.v_cache,
        out=out,
        lse=a.lse,
        alibi_slopes=a.alibi_slopes,
        sinks=a.sinks,
        k_scale=a.k_scale,
        v_scale=a.v_scale,
    )
    written(out=out, lse=a.lse)
    pools(k_cache, a.v_cache, "q", q)
    on_device("k_cache", k_cache, device)
    on_device("v_cache", a.v_cache, device)
    num_tokens, num_q_heads, head_dim = q.shape
    _, _, num_kv_heads, cache_dim = k_cache.shape
    head_dim_v = a.v_cache.shape[3]
    head_dims(cache_dim, head_dim_v)
    if head_dim != cache_dim:
        bad_shape("q", q, f"head dim {cache_dim}, that of k_cache")
    if num_kv_heads < 1 or num_q_heads < 1 or num_q_heads % num_kv_heads:
        bad_shape("q", q, f"a number of query heads that is a multiple of the {num_kv_heads} KV heads")
    contiguous_last("q", q)
    batch(a.block_table, a.cu_seqlens_q, a.seq_lens, device)

    if out.dtype != dtype:
        bad_dtype("out", out, f"{dtype}, the dtype of q")
    if out.dim() != 3 or out.shape[0] != num_tokens or out.shape[1] != num_q_heads or out.shape[2] != head_dim_v:
        bad_shape("out", out, f"[T, Hq, Dv] = {[num_tokens, num_q_heads, head_dim_v]}")
    on_device("out", out, device)
    contiguous_last("out", out)
    if a.lse is not None:
        fp32_vector("lse", a.lse, ((num_tokens, num_q_heads),), device)
    if a.alibi_slopes is not None:
        shapes = ((num_q_heads,), (a.seq_lens.shape[0], num_q_heads))
        fp32_vector("alibi_slopes", a.alibi_slopes, shapes, device)
    if a.sinks is not None:
        fp32_vector("sinks", a.sinks, ((num_q_heads,),), device)
    if a.tree_mask is not None:
        if a.tree_mask.dtype != INT32:
            bad_dtype("tree_mask", a.tree_mask, INT32)
        if a.tree_mask.dim() != 2 or a.tree_mask.shape[0] != num_tokens:
            bad_shape("tree_mask", a.tree_mask, f"[T, words] with T = {num_tokens}")
        on_device("tree_mask", a.tree_mask, device)
        contiguous_last("tree_mask", a.tree_mask)
    granularity = "none"
    if a.k_scale is not None or a.v_scale is not None:
        granularity = scales(a.k_scale, a.v_scale, k_cache, a.v_cache, device)
    if a.plan is not None:
        plan_words("plan", a.plan, device)
        if not a.plan.shape[0]:
            bad_shape("plan", a.plan, "the output of plan()")
    if a.workspace is not None:
        _workspace(a.workspace, device)
    # Kernels take both as fp32: what overflows there gives NaN, and a cap that becomes 0 would be none.
    if not abs(a.softmax_scale) <= _FP32.max:
        bad("softmax_scale", "a number that fp32 holds", a.softmax_scale)
    if not (a.softcap == 0.0 or _FP32.tiny <= a.softcap <= _FP32.max):
        bad("softcap", "0 (off) or a positive number that fp32 holds", a.softcap)
    window_counts(a.window_left, a.window_right)
    num_splits(a.num_splits, a.invariant)
    return attention_spec(a, granularity)


def _workspace(workspace: Tensor, device: torch.device) -> None:
    if workspace.dtype != torch.uint8:
        bad_dtype("workspace", workspace, "torch.uint8")
    if workspace.dim() != 1 or workspace.stride(0) != 1:
        bad_shape("workspace", workspace, "[bytes], contiguous")
    on_device("workspace", workspace, device)
