"""Steps as CUDA graphs: what a step launches is recorded once for a padded shape and replayed for every step that fits.

A small step is over sooner on a GPU than Python launches its kernels, some ten for each layer; a replay launches them
all at once. Lengths, page tables and the plan are data in buffers that the graph reads, so that one graph serves every
mix of prompts and decodes of its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from chunkattn.serving.step_metadata import StepMetadata
from chunkattn.serving.step_model import StepModel
from chunkattn.types import Batch, PagedKV

# Rows of the largest graph: up to about here a step is bound by reading the weights, and rows of padding cost nothing.
MOST_TOKENS = 256


class Graph(Protocol):
    """Something that records launches and repeats them."""

    def capture(self, run: Callable[[], Tensor]) -> Tensor:
        """Records what ``run`` launches; returns the tensor that every replay fills."""
        ...

    def replay(self) -> None:
        """Launches it again, on what the buffers hold now."""


class CudaGraph:
    """A `torch.cuda.CUDAGraph`. Has not run on a GPU yet."""

    _pool: object = None  # memory of all graphs: one runs at a time, and what they return is kept

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, run: Callable[[], Tensor]) -> Tensor:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()  # compiles kernels and lets libraries allocate; computing a step twice changes nothing
        torch.cuda.current_stream().wait_stream(side)
        CudaGraph._pool = CudaGraph._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self._graph, pool=CudaGraph._pool):  # type: ignore[arg-type]
            return run()

    def replay(self) -> None:
        self._graph.replay()


class StepGraphs:
    """Runs steps of a model by graphs, captured as shapes come up.

    A shape is a number of tokens and a number of requests, each rounded up to a power of two. The rows beyond the
    step's own belong to no request: nothing is appended for them, their attention is zero, nobody looks at their
    logits. All shapes share one set of buffers, of which a smaller one uses the beginning.
    """

    def __init__(
        self,
        model: StepModel,
        cache: list[PagedKV],
        new_graph: Callable[[], Graph] = CudaGraph,
        *,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        """Allocates the buffers.

        Args:
            model: whose steps; must read no tensor on the host.
            cache: its pages.
            new_graph: makes an empty graph.
            most_tokens: rows of the largest graph; larger steps are not for graphs.
        """
        self._model = model
        self._cache = cache
        self._new_graph = new_graph
        self._most_tokens = _power_of_two(most_tokens)
        num_pages, page_size = cache[0].k_cache.shape[:2]
        columns = min(num_pages, -(-model.max_seq_len // page_size))

        def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=model.device)

        most = self._most_tokens  # a request brings a token at least
        self._input_ids = buffer(most, dtype=torch.int64)
        self._logits_indices = buffer(most, dtype=torch.int64)
        self._starts = buffer(most + 1, dtype=torch.int32)
        self._seq_lens = buffer(most, dtype=torch.int32)
        self._block_table = buffer(most, columns, dtype=torch.int32)
        self._captured: dict[tuple[int, int], tuple[Graph, Tensor]] = {}

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The (tokens, requests) that have a graph."""
        return list(self._captured)

    def serves(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens, without drafts, has a shape."""
        return 0 < num_tokens <= self._most_tokens

    def __call__(self, step: StepMetadata) -> Tensor:
        """Runs a step.

        Args:
            step: without drafts, in host memory.

        Returns:
            [rows of ``logits_indices``, vocab_size] fp32, valid until the next call.

        Raises:
            RuntimeError: the model does something that cannot be captured.
        """
        shape = _power_of_two(len(step.input_ids)), _power_of_two(len(step.attention.seq_lens))
        self._load(step, *shape)
        if shape not in self._captured:
            graph = self._new_graph()
            self._captured[shape] = graph, graph.capture(lambda: self._run(*shape))
        graph, logits = self._captured[shape]
        graph.replay()
        return logits[: len(step.logits_indices)]

    def _load(self, step: StepMetadata, tokens: int, requests: int) -> None:
        """Fills the buffers up to a shape; what is beyond the step is of requests without tokens and without keys."""
        batch, end = step.attention, len(step.input_ids)
        for target, source, size, value in (
            (self._input_ids, step.input_ids, tokens, 0),
            (self._logits_indices, step.logits_indices, requests, 0),
            (self._starts, batch.cu_seqlens_q, requests + 1, end),
            (self._seq_lens, batch.seq_lens, requests, 0),
        ):
            target[:size].copy_(F.pad(source, (0, size - len(source)), value=value), non_blocking=True)
        rows, columns = batch.block_table.shape
        self._block_table[:rows, :columns].copy_(batch.block_table, non_blocking=True)

    def _run(self, tokens: int, requests: int) -> Tensor:
        batch = Batch(self._starts[: requests + 1], self._seq_lens[:requests], self._block_table[:requests])
        return self._model.forward(self._input_ids[:tokens], batch, self._cache, self._logits_indices[:requests])


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
