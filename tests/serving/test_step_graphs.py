"""Steps by graphs give the tokens of steps without: shapes, padding, reuse. A stand-in takes the place of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from chunkattn.models import Decoder, ModelConfig
from chunkattn.models.rope import RopeConfig
from chunkattn.models.weights import DecoderWeights, LayerWeights
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, ModelExecutor, NgramDrafter, StepMetadata
from chunkattn.serving.step_graphs import StepGraphs

CONFIG = ModelConfig("tiny", 64, 32, 24, 2, 4, 2, 8, 1e-5, 128, RopeConfig(1e4, 8), (None, None))
PAGE_SIZE = 4


class StandIn:
    """Capturing computes nothing that lasts; a replay runs the function again, into the tensor of the capture."""

    def __init__(self) -> None:
        self.num_replays = 0

    def capture(self, run: Callable[[], Tensor]) -> Tensor:
        self.run = run
        self.out = torch.full_like(run(), float("nan"))
        return self.out

    def replay(self) -> None:
        self.num_replays += 1
        self.out.copy_(self.run())


class Refusing(StandIn):
    """A model that waits for the device cannot be captured."""

    def capture(self, run: Callable[[], Tensor]) -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")


class NoHostSync(TorchDispatchMode):
    """Raises where a tensor's value is asked for: on a GPU that waits for the device, in a capture it is an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not name.startswith(("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select")), name
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    source = torch.Generator().manual_seed(2)
    shapes = (64, 32), (64, 32), (32, 32), (48, 32), (32, 24)
    words, qkv, output, gate_up, down = (torch.randn(shape, generator=source) * 0.4 for shape in shapes)
    one = torch.ones(32)
    layer = LayerWeights(one, qkv, None, None, None, output, None, one, gate_up, None, down, None)
    return Decoder(CONFIG, DecoderWeights(words, (layer, layer), one, words))


def with_graphs(executor: ModelExecutor, decoder: Decoder, graph: type[StandIn], **options: int) -> list[StandIn]:
    made: list[StandIn] = []

    def new_graph() -> StandIn:
        made.append(graph())
        return made[-1]

    executor._graphs = StepGraphs(decoder, executor.cache, new_graph, **options)
    return made


def run(
    decoder: Decoder, config: SchedulerConfig, graph: type[StandIn] | None, **options: int
) -> tuple[list[list[int]], list[StandIn], list[tuple[int, int]], int]:
    drafter = NgramDrafter() if config.num_draft_tokens else None
    executor = ModelExecutor(decoder, num_pages=config.num_pages, page_size=PAGE_SIZE, drafter=drafter)
    for layer in executor.cache:
        layer.k_cache.fill_(float("nan"))  # nobody may look at what nobody has written
        layer.v_cache.fill_(float("nan"))
    made = with_graphs(executor, decoder, graph, **options) if graph else []
    engine = Engine(Scheduler(config), executor)
    prompts = [[(5 * i * i + 3 * j) % 64 for j in range(3 + 9 * (i % 4))] for i in range(7)]
    requests = [Request(str(i), prompt, 9 + 5 * (i % 2)) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add_request(request)
    engine.run()
    assert len(engine.scheduler.pool) == config.num_pages
    shapes = executor._graphs.shapes if executor._graphs else []
    return [r.output_token_ids for r in requests], made, shapes, sum(r.num_preemptions for r in requests)


@pytest.mark.parametrize("num_pages", [100, 14])
@pytest.mark.parametrize("budget", [7, 16, 40, None])
def test_tokens_are_those_without_graphs(decoder: Decoder, budget: int | None, num_pages: int) -> None:
    config = SchedulerConfig(budget, 6, PAGE_SIZE, num_pages)
    expected, *_, preemptions = run(decoder, config, None)
    assert (preemptions > 0) == (num_pages == 14)
    tokens, made, shapes, _ = run(decoder, config, StandIn)
    assert tokens == expected
    assert len(made) == len(shapes) == len(set(shapes))
    assert all(size & (size - 1) == 0 for shape in shapes for size in shape)
    assert all(graph.num_replays for graph in made)
    assert max(graph.num_replays for graph in made) > 3


def test_large_steps_and_drafts_run_without(decoder: Decoder) -> None:
    config = SchedulerConfig(40, 6, PAGE_SIZE, 100)
    expected, *_ = run(decoder, config, None)
    tokens, _, shapes, _ = run(decoder, config, StandIn, most_tokens=8)
    assert tokens == expected
    assert {size for size, _ in shapes} <= {1, 2, 4, 8}
    guessing = SchedulerConfig(40, 6, PAGE_SIZE, 100, num_draft_tokens=4)
    tokens, made, _, _ = run(decoder, guessing, StandIn)
    assert tokens == expected
    assert not any(graph.num_replays for graph in made) or made


def test_padding_writes_nothing_and_a_smaller_step_sees_nothing_of_a_larger_one(decoder: Decoder) -> None:
    executor = ModelExecutor(decoder, num_pages=30, page_size=PAGE_SIZE)
    (made,) = [with_graphs(executor, decoder, StandIn)]
    assert executor._graphs is not None
    scheduler = Scheduler(SchedulerConfig(None, 9, PAGE_SIZE, 30, enable_prefix_caching=False))
    for length, count in ((3, 5), (5, 3), (13, 1)):  # 15, 15 and 13 tokens: all in the shapes of 16
        for i in range(count):
            scheduler.add_request(Request(f"{length}.{i}", [(7 * j + i) % 64 for j in range(length)], 1))
        batch = scheduler.schedule()
        for layer in executor.cache:
            layer.k_cache.fill_(float("nan"))
            layer.v_cache.fill_(float("nan"))
        sampled = executor(batch)
        written = torch.zeros(30 * PAGE_SIZE, dtype=torch.bool)
        written[StepMetadata.of(batch, PAGE_SIZE).slot_mapping] = True
        for layer in executor.cache:
            for pool in (layer.k_cache, layer.v_cache):
                assert torch.equal(~pool.flatten(2).isnan().any(-1).flatten(), written)
        scheduler.update(batch, sampled)
    assert executor._graphs.shapes == [(16, 8), (16, 4), (16, 1)]
    assert len(made) == 3


def test_a_step_asks_for_no_value_on_the_host(decoder: Decoder) -> None:
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoHostSync():
        int(torch.ones(1))
    executor = ModelExecutor(decoder, num_pages=30, page_size=PAGE_SIZE)
    with_graphs(executor, decoder, StandIn)
    assert executor._graphs is not None
    scheduler = Scheduler(SchedulerConfig(16, 4, PAGE_SIZE, 30))
    for i in range(3):
        scheduler.add_request(Request(str(i), [i, 2, 3, 4, 5, 6, 7, 8, 9], 3))
    while scheduler.has_work:
        batch = scheduler.schedule()
        step = StepMetadata.of(batch, PAGE_SIZE)
        with NoHostSync():
            logits = executor._graphs(step)
        tokens = logits.argmax(-1).tolist()
        scheduler.update(batch, {c.request.request_id: t for c, t in zip(batch.sampling, tokens, strict=True)})


def test_what_cannot_be_captured_runs_as_before(decoder: Decoder) -> None:
    config = SchedulerConfig(16, 6, PAGE_SIZE, 100)
    expected, *_ = run(decoder, config, None)
    with pytest.warns(RuntimeWarning, match="no CUDA graphs from here on: operation not permitted") as caught:
        tokens, made, shapes, _ = run(decoder, config, Refusing)
    assert tokens == expected
    assert (len(caught), len(made), shapes) == (1, 1, [])


def test_a_cpu_has_no_graphs(decoder: Decoder) -> None:
    assert ModelExecutor(decoder, num_pages=4, page_size=PAGE_SIZE)._graphs is None
