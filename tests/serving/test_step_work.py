"""Counts of a step: exact pairs, exact FLOPs, however a prompt is cut."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkattn.models import ModelConfig
from chunkattn.models.rope import RopeConfig
from chunkattn.scheduler import Chunk, Request
from chunkattn.serving import ModelWork, StepWork, visible_pairs


def brute_force(start: int, length: int, window: int | None) -> int:
    return sum(min(p + 1, window if window is not None else p + 1) for p in range(start, start + length))


@given(st.integers(0, 40), st.integers(0, 40), st.none() | st.integers(1, 50))
def test_visible_pairs(start: int, length: int, window: int | None) -> None:
    assert visible_pairs(start, length, window) == brute_force(start, length, window)


def test_counts_of_a_mixed_step() -> None:
    request = Request("a", [1] * 10, 5)
    chunks = [
        Chunk(request, 9, 1, True, True, [0]),
        Chunk(request, 4, 1, True, True, [0], num_drafts=2),
        Chunk(request, 2, 5, False, False, [0]),
        Chunk(request, 0, 3, False, True, [0]),
    ]
    assert StepWork.of(chunks) == StepWork(
        num_tokens=1 + 3 + 5 + 3,
        num_prefill_tokens=8,
        num_requests=4,
        num_logits=1 + 3 + 0 + 1,
        prefill_pairs=brute_force(2, 5, None) + brute_force(0, 3, None),
        decode_pairs=10 + brute_force(4, 3, None),
        num_keys=10 + 7 + 7 + 3,
    )


@pytest.mark.parametrize("windows", [(None, None), (4, None)])
def test_flops_do_not_depend_on_the_cuts(windows: tuple[int | None, ...]) -> None:
    config = ModelConfig("m", 50, 16, 24, 2, 4, 2, 8, 1e-5, 512, RopeConfig(1e4, 8), windows)
    work = ModelWork(config)
    whole = work.span_flops(0, 30, 1)
    assert whole == work.span_flops(0, 13, 0) + work.span_flops(13, 30, 1)
    pairs = sum(brute_force(0, 30, window) for window in windows)
    parameters = 2 * (16 * 32 + 2 * 16 * 16 + 16 * 32 + 3 * 16 * 24)
    assert work.linear_parameters == parameters
    assert whole == 2 * parameters * 30 + 2 * 16 * 50 + 4 * 4 * 8 * pairs
    step = StepWork.of([Chunk(Request("a", [1] * 30, 1), 0, 30, False, True, [0])])
    assert work.step_flops(step) >= whole
    assert (work.step_flops(step) == whole) == (windows == (None, None))


def test_bytes_are_weights_and_cache() -> None:
    config = SimpleNamespace(
        hidden_size=16, num_layers=2, num_q_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=24, vocab_size=50,
        windows=(None, None),
    )  # fmt: skip
    work = ModelWork(config, 2)  # type: ignore[arg-type]
    assert work.kv_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert work.step_bytes(StepWork(num_tokens=3, num_keys=10)) == work.weight_bytes + 13 * work.kv_bytes_per_token
