"""Runs a scheduled batch on a model: tensors in, greedy tokens out for every chunk that samples."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from chunkattn.scheduler import Chunk, ScheduledBatch
from chunkattn.serving.drafts import NO_DRAFT, Draft, NgramDrafter
from chunkattn.serving.step_graphs import StepGraphs
from chunkattn.serving.step_metadata import StepMetadata
from chunkattn.serving.step_model import StepModel


class Executor(Protocol):
    """Anything that computes a batch: a model, a simulator, a test double."""

    def __call__(self, batch: ScheduledBatch) -> Mapping[str, int | Sequence[int]]:
        """Computes the chunks; returns the next token by request id for every chunk with ``samples``, or several
        where guesses were right."""
        ...


class ModelExecutor:
    """Greedy decoding with a model and its paged cache.

    Attributes:
        cache: the pages, one `PagedKV` a layer.
        least_margin: smallest distance seen between the best and the second-best logit; how far the arithmetic
            was from choosing another token.
        metadata_seconds: what building the last step's tensors took.
        num_drafted, num_accepted: guesses verified so far, and those that were right.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        num_pages: int,
        page_size: int,
        drafter: NgramDrafter | None = None,
        graphs: bool = True,
    ) -> None:
        """Allocates the cache.

        Args:
            model: the decoder.
            num_pages, page_size: of the cache; the scheduler's.
            drafter: guesses as many tokens as the scheduler leaves room for; None guesses none.
            graphs: whether small steps run as CUDA graphs where the model is on a GPU. Tested on a CPU with a stand-in
                for the graph; has not run on a GPU yet.
        """
        self._model = model
        self._page_size = page_size
        self._drafter = drafter
        self.cache = model.allocate_cache(num_pages, page_size)
        self._graphs = StepGraphs(model, self.cache) if graphs and model.device.type == "cuda" else None
        self.least_margin = float("inf")
        self.metadata_seconds = 0.0
        self.num_drafted = self.num_accepted = 0

    def __call__(self, batch: ScheduledBatch) -> dict[str, int | list[int]]:
        device = self._model.device
        drafts = self._propose(batch)
        graphs = self._graphs if self._graphs and not drafts and self._graphs.serves(batch.num_tokens) else None
        start = time.perf_counter()
        metadata = StepMetadata.of(batch, self._page_size, "cpu" if graphs else device, drafts)
        self.metadata_seconds = time.perf_counter() - start
        try:
            logits = graphs(metadata) if graphs else self.forward(metadata)
        except RuntimeError as error:
            if graphs is None:
                raise
            warnings.warn(f"no CUDA graphs from here on: {error}", RuntimeWarning, stacklevel=2)
            self._graphs = None
            return self(batch)  # computing a step again changes nothing
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a step that samples nothing must be over as well when it is timed
        if not len(logits):
            return {}
        best = logits.topk(2, dim=-1)
        tokens = best.indices[:, 0].tolist()
        margins = (best.values[:, 0] - best.values[:, 1]).tolist()
        sampled: dict[str, int | list[int]] = {}
        row = 0
        for chunk in batch.sampling:
            draft = drafts.get(chunk.request.request_id, NO_DRAFT)
            path = draft.accepted(tokens[row : row + 1 + len(draft.tokens)])
            used = [row, *(row + 1 + i for i in path)]
            self.least_margin = min(self.least_margin, *(margins[i] for i in used), float("inf"))
            sampled[chunk.request.request_id] = [tokens[i] for i in used] if path else tokens[row]
            self._keep(chunk, path)
            self.num_drafted += len(draft.tokens)
            self.num_accepted += len(path)
            row += 1 + len(draft.tokens)
        return sampled

    def forward(self, step: StepMetadata) -> Tensor:
        """The step's logits, [rows of ``logits_indices``, vocab_size] fp32."""
        if step.tree_mask is None:
            return self._model.forward(step.input_ids, step.attention, self.cache, step.logits_indices)
        return self._model.forward(
            step.input_ids,
            step.attention,
            self.cache,
            step.logits_indices,
            positions=step.positions,
            tree_mask=step.tree_mask,
        )

    def _propose(self, batch: ScheduledBatch) -> dict[str, Draft]:
        if self._drafter is None:
            return {}
        return {
            chunk.request.request_id: self._drafter.propose(chunk.request.tokens(0, chunk.end), chunk.num_drafts)
            for chunk in batch.chunks
            if chunk.num_drafts
        }

    def _keep(self, chunk: Chunk, path: Sequence[int]) -> None:
        """Moves the keys and values of confirmed guesses to where their text puts them."""
        moves = [(chunk.end + i, chunk.end + depth) for depth, i in enumerate(path) if i != depth]
        if not moves:
            return
        slots = torch.tensor(
            [[chunk.block_table[p // self._page_size], p % self._page_size] for pair in moves for p in pair],
            device=self._model.device,
        )
        (pages_from, pages_to), (from_, to) = slots[:, 0].view(-1, 2).T, slots[:, 1].view(-1, 2).T
        for layer in self.cache:
            for pool in (layer.k_cache, layer.v_cache):
                pool[pages_to, to] = pool[pages_from, from_]
