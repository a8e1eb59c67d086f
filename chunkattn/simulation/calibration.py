"""Measures steps of a real executor, for the cost model."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial

from chunkattn.bench.timing import Window
from chunkattn.bench.timing import window as window_of
from chunkattn.models import Decoder
from chunkattn.models.activation_memory import peak_activation_bytes
from chunkattn.scheduler import Chunk, Request, ScheduledBatch
from chunkattn.serving import ModelExecutor, StepMetadata, StepWork
from chunkattn.simulation.cost_model import LEAST_STEPS, CostModel, MeasuredStep

Shape = tuple[tuple[int, int], ...]  # (tokens, history) of each request; one token with history is a decode
_HELD_OUT = 12
_ROUNDS, _MOST_ROUNDS = 3, 6
_ENOUGH_S = 0.6  # of measuring one shape
_MOST_S = 60.0  # of measuring all; the first round ends whatever it takes


class Calibration:
    """Runs steps of chosen shapes on a model.

    Attributes:
        shapes: what is measured for the fit, small steps first.
        held_out: what is measured for the error, drawn at random over the same range.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        page_size: int,
        longest_chunk: int,
        longest_context: int,
        most_decodes: int,
        seed: int = 0,
    ) -> None:
        """Chooses the shapes.

        Args:
            decoder: the model.
            page_size: of the cache.
            longest_chunk: most prompt tokens of a step.
            longest_context: most tokens of a request.
            most_decodes: most decodes of a step.
            seed: of the held-out shapes.

        Raises:
            ValueError: so few tokens that there are too few shapes to fit.
        """
        self._page_size = page_size
        self._decoder = decoder
        longest_context = min(longest_context, decoder.max_seq_len)
        longest_chunk = min(longest_chunk, longest_context)
        self._longest_chunk = min(longest_chunk, 256)  # memory is linear beyond
        self.shapes = list(dict.fromkeys(_grid(longest_chunk, longest_context, most_decodes)))
        if len(self.shapes) < LEAST_STEPS:
            raise ValueError(
                f"longest_context: expected requests of enough tokens for {LEAST_STEPS} different steps, "
                f"got {len(self.shapes)} with at most {longest_context} tokens"
            )
        self.shapes.sort(key=lambda shape: sum(tokens for tokens, _ in shape))
        self.held_out = list(_draws(random.Random(seed), longest_chunk, longest_context, most_decodes))
        pages = [
            sum(-(-(tokens + history) // page_size) for tokens, history in shape)
            for shape in [*self.shapes, *self.held_out, ((1, 1),) * 8]
        ]
        self._executor = ModelExecutor(decoder, num_pages=max(pages), page_size=page_size)
        for layer in self._executor.cache:  # defined contents: denormal or huge numbers would take their own time
            layer.k_cache.normal_()
            layer.v_cache.normal_()

    def run(self, progress: Callable[[int, int], None] = lambda done, total: None) -> CostModel:
        """Measures everything and fits.

        Args:
            progress: called with the steps done and to do.
        """
        shapes = [*self.shapes, *self.held_out]
        steps = self._measure(shapes, progress)
        config = self._decoder.config
        return CostModel.fit(
            steps[: len(self.shapes)],
            steps[len(self.shapes) :],
            activation_bytes=self._activations(),
            facts={
                "model": config.name,
                "dtype": str(self._decoder.dtype).removeprefix("torch."),
                "device": str(self._decoder.device),
                "page_size": self._page_size,
                "measured_steps": len(self.shapes),
            },
        )

    def _measure(self, shapes: list[Shape], progress: Callable[[int, int], None]) -> list[MeasuredStep]:
        """Rounds over all shapes in an order drawn anew, so that a disturbance of the machine is spread over many.

        A disturbance only ever adds time: a step's time is the least of its runs, of those with a quiet machine where
        there were any. Shapes without one get further rounds while there is time; long steps run less often.
        """
        batches = [self._batch(shape) for shape in shapes]
        for batch in batches if self._decoder.device.type == "cuda" else batches[:1]:
            self._executor(batch)  # first-use costs; on a GPU of every shape, which may compile
        windows: list[list[Window]] = [[] for _ in shapes]
        order, source = list(range(len(shapes))), random.Random(0)
        start = time.perf_counter()
        for number in range(_MOST_ROUNDS):
            source.shuffle(order)
            for done, i in enumerate(order):
                if number and time.perf_counter() - start > _MOST_S:
                    break
                progress(min((number * len(shapes) + done) // _ROUNDS, len(shapes)), len(shapes))
                enough = sum(window.median_s for window in windows[i]) >= _ENOUGH_S
                quiet = any(window.quiet for window in windows[i])
                if not quiet or (number < _ROUNDS and not enough):
                    windows[i].append(window_of(partial(self._executor, batches[i]), seconds=0.0, min_calls=1))
        progress(len(shapes), len(shapes))
        return [MeasuredStep(StepWork.of(batch.chunks), _least(runs)) for batch, runs in zip(batches, windows)]

    def _activations(self) -> tuple[float, float]:
        """Bytes per token of a chunk and per row of logits."""

        def peak(shape: Shape) -> int:
            device = self._decoder.device
            step = StepMetadata.of(self._batch(shape), self._page_size, device)
            return peak_activation_bytes(lambda: self._executor.forward(step), device)

        return peak(((self._longest_chunk, 0),)) / self._longest_chunk, peak(((1, 1),) * 8) / 8

    def _batch(self, shape: Shape) -> ScheduledBatch:
        chunks = []
        page = 0
        for i, (tokens, history) in enumerate(shape):
            pages = -(-(tokens + history) // self._page_size)
            request = Request(
                str(i), [(7 * j + i) % self._decoder.config.vocab_size for j in range(tokens + history)], 1
            )
            decodes = tokens == 1 and history > 0
            chunks.append(Chunk(request, history, tokens, decodes, True, range(page, page + pages)))
            page += pages
        return ScheduledBatch(0, tuple(chunks))


def _least(runs: list[Window]) -> float:
    return min(run.median_s for run in [run for run in runs if run.quiet] or runs)


def _powers(first: int, last: int, factor: int = 2) -> Iterator[int]:
    while first < last:
        yield first
        first *= factor
    yield last


def _grid(chunk: int, context: int, decodes: int) -> Iterator[Shape]:
    for count in _powers(1, decodes):
        for history in (16, context // 4, context - 1):
            if count * history <= 64 * 1024 and history > 0:
                yield ((1, history),) * count
    for tokens in _powers(4, chunk):
        yield ((tokens, 0),)
        for history in (context // 4, context // 2):
            if history + tokens <= context and tokens <= 1024:
                yield ((tokens, history),)
    for tokens in _powers(16, min(chunk, 512), 4):
        yield ((tokens, 0), *((1, context // 4),) * min(decodes, 8))


def _draws(source: random.Random, chunk: int, context: int, decodes: int) -> Iterator[Shape]:
    for i in range(_HELD_OUT):
        count = source.randint(1 if i % 3 else 0, decodes)
        shape = [(1, source.randint(1, max(context // 2, 1))) for _ in range(count)]
        if i % 3 < 2 or not shape:
            tokens = round(2 ** source.uniform(2, (chunk - 1).bit_length()))
            tokens = min(max(tokens, 1), chunk)
            shape.append((tokens, source.randint(0, max(context - tokens, 0) // 2)))
        yield tuple(shape)
