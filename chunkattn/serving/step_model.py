"""The part of a decoder that an executor uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from chunkattn.types import Batch, PagedKV


class StepModel(Protocol):
    """Computes the logits of a step; `chunkattn.models.Decoder` does."""

    @property
    def device(self) -> torch.device: ...

    @property
    def max_seq_len(self) -> int: ...

    def allocate_cache(self, num_pages: int, page_size: int) -> list[PagedKV]: ...

    def forward(
        self,
        input_ids: Tensor,
        batch: Batch,
        cache: Sequence[PagedKV],
        logits_indices: Tensor,
        *,
        positions: Tensor | None = None,
        tree_mask: Tensor | None = None,
    ) -> Tensor: ...
