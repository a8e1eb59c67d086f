"""Checks on the tensors that describe the ragged batch."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.validate.sentences import bad, bad_dtype, bad_shape
from chunkattn.validate.tensor import INT32, on_device


def batch(block_table: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, device: torch.device) -> None:
    if seq_lens.dim() != 1:
        bad_shape("seq_lens", seq_lens, "[B]")
    requests = seq_lens.shape[0]
    if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] != requests + 1:
        bad_shape("cu_seqlens_q", cu_seqlens_q, f"[{requests + 1}] (B + 1)")
    if block_table.dim() != 2 or block_table.shape[0] != requests:
        bad_shape("block_table", block_table, f"[{requests}, M] (B rows)")
    for arg, index in (("block_table", block_table), ("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens)):
        if index.dtype != INT32:
            bad_dtype(arg, index, INT32)
        on_device(arg, index, device)
    if cu_seqlens_q.stride(0) != 1:
        bad("cu_seqlens_q", "a contiguous tensor", f"stride {cu_seqlens_q.stride(0)}")
    if seq_lens.stride(0) != 1 and requests > 1:
        bad("seq_lens", "a contiguous tensor", f"stride {seq_lens.stride(0)}")
