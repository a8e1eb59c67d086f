"""The plan that FlashAttention 3's `get_scheduler_metadata` returns here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.types import Plan


@dataclass(frozen=True)
class SchedulerMetadata(Plan):
    """A plan and what it was made for, so that a call can be compared with it before it appends to the cache.

    Attributes:
        causal, window, num_splits, cu_seqlens_q, seq_lens: as `chunkattn.plan` got them.
    """

    causal: bool
    window: tuple[int, int]
    num_splits: int | None
    cu_seqlens_q: Tensor
    seq_lens: Tensor

    def check(
        self,
        *,
        heads: tuple[int, int],
        causal: bool,
        window: tuple[int, int],
        num_splits: int | None,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
    ) -> None:
        """Compares a call with the plan.

        Args:
            heads: query and KV heads.
            causal, window: of the call.
            num_splits: of the call; None takes the plan's.
            cu_seqlens_q, seq_lens: int32 [B+1] and [B]; on a GPU, where reading them would wait, only their shapes
                count.

        Raises:
            ValueError: the plan was made for something else.
        """
        for what, wanted, made in (
            ("heads", heads, (self.num_q_heads, self.num_kv_heads)),
            ("causal", causal, self.causal),
            ("window_size", window, self.window),
            ("num_splits", num_splits or self.num_splits, self.num_splits),
            ("a batch size", seq_lens.shape[0], self.seq_lens.shape[0]),
        ):
            if wanted != made:
                raise ValueError(f"scheduler_metadata: expected one made with {what} = {wanted}, got {made}")
        for what, tensor, planned in (
            ("cu_seqlens_q", cu_seqlens_q, self.cu_seqlens_q),
            ("lengths", seq_lens, self.seq_lens),
        ):
            if seq_lens.device.type == "cpu" and not torch.equal(tensor, planned):
                raise ValueError(
                    f"scheduler_metadata: expected one made with {what} = {tensor.tolist()}, got {planned.tolist()}"
                )
