"""Runs a scheduled batch on a model: tensors in, one greedy token out for every chunk that samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from chunkattn.scheduler.batch import ScheduledBatch, StepMetadata
from chunkattn.types import Batch, PagedKV


class Executor(Protocol):
    """Anything that computes a batch: a model, a simulator, a test double."""

    def __call__(self, batch: ScheduledBatch) -> dict[str, int]:
        """Computes the chunks; returns the next token by request id for every chunk with ``samples``."""
        ...


class StepModel(Protocol):
    """The part of a decoder that an executor uses."""

    @property
    def device(self) -> torch.device: ...

    def allocate_cache(self, num_pages: int, page_size: int) -> list[PagedKV]: ...

    def forward(self, input_ids: Tensor, batch: Batch, cache: Sequence[PagedKV], logits_indices: Tensor) -> Tensor: ...


class ModelExecutor:
    """Greedy decoding with a model and its paged cache.

    Attributes:
        least_margin: smallest distance seen between the best and the second-best logit; how far the arithmetic
            was from choosing another token.
    """

    def __init__(self, model: StepModel, *, num_pages: int, page_size: int) -> None:
        self._model = model
        self._page_size = page_size
        self._cache = model.allocate_cache(num_pages, page_size)
        self.least_margin = float("inf")

    def __call__(self, batch: ScheduledBatch) -> dict[str, int]:
        device = self._model.device
        logits = self.forward(batch.to_metadata(self._page_size, device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a step that samples nothing must be over as well when it is timed
        if not len(logits):
            return {}
        best = logits.topk(2, dim=-1)
        self.least_margin = min(self.least_margin, (best.values[:, 0] - best.values[:, 1]).min().item())
        tokens = best.indices[:, 0].tolist()
        return {chunk.request.request_id: token for chunk, token in zip(batch.sampling, tokens, strict=True)}

    def forward(self, step: StepMetadata) -> Tensor:
        """The step's logits, [chunks that sample, vocab_size] fp32."""
        return self._model.forward(step.input_ids, step.attention, self._cache, step.logits_indices)
