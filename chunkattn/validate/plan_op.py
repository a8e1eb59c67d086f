"""What `plan` accepts, and what its words look like."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.args import PlanArgs, plan_spec
from chunkattn.types import DTYPES, MAX_HEAD_DIM, AttentionSpec
from chunkattn.validate.options import MAX_COUNT, num_splits, window_counts
from chunkattn.validate.sentences import bad, bad_dtype, bad_shape
from chunkattn.validate.tensor import INT32, on_device


def plan(a: PlanArgs) -> AttentionSpec:
    """Checks one plan call and returns its facts."""
    seq_lens, cu_seqlens_q = a.seq_lens, a.cu_seqlens_q
    if seq_lens.dim() != 1:
        bad_shape("seq_lens", seq_lens, "[B]")
    if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] != seq_lens.shape[0] + 1:
        bad_shape("cu_seqlens_q", cu_seqlens_q, f"[{seq_lens.shape[0] + 1}] (B + 1)")
    for arg, index in (("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens)):
        if index.dtype != INT32:
            bad_dtype(arg, index, INT32)
        on_device(arg, index, seq_lens.device)
        if index.stride(0) != 1 and index.shape[0] > 1:
            bad(arg, "a contiguous tensor", f"stride {index.stride(0)}")
    plan_words("words", a.words, seq_lens.device)
    if a.num_kv_heads < 1 or a.num_q_heads < 1 or a.num_q_heads % a.num_kv_heads:
        bad("num_q_heads", f"a positive multiple of num_kv_heads {a.num_kv_heads}", a.num_q_heads)
    for arg, dim in (("head_dim", a.head_dim), ("head_dim_v", a.head_dim_v)):
        if dim < 8 or dim > MAX_HEAD_DIM or dim % 8:
            bad(arg, f"a multiple of 8 up to {MAX_HEAD_DIM}", dim)
    window_counts(a.window_left, a.window_right)
    num_splits(a.num_splits, a.invariant)
    if a.page_size < 1:
        bad("page_size", "at least 1", a.page_size)
    for arg, count in (("num_q_heads", a.num_q_heads), ("page_size", a.page_size)):
        if count > MAX_COUNT:
            bad(arg, f"at most {MAX_COUNT}", count)
    if a.dtype not in DTYPES:
        raise TypeError(f"dtype: expected bfloat16, float16 or float32, got {a.dtype}")
    if a.layout not in ("NHD", "HND"):
        bad("layout", "'NHD' or 'HND'", repr(a.layout))
    return plan_spec(a)


def plan_words(arg: str, words: Tensor, device: torch.device) -> None:
    if words.dtype != torch.int64 or words.dim() != 1 or words.stride(0) != 1:
        bad(arg, "the contiguous int64 words of a Plan", f"{words.dtype} of shape {list(words.shape)}")
    on_device(arg, words, device)
