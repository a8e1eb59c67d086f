"""Windows: what is timed, what is not, and when a machine counts as quiet."""

from __future__ import annotations

import time

import pytest
import torch

from chunkattn.bench import limits, memory
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.bench.timing import Window, window
from chunkattn.testing import build


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_only_the_call_is_timed() -> None:
    seen: list[object] = []
    done = window(
        lambda: spin(0.002),
        seconds=0.0,
        min_calls=5,
        before=lambda: spin(0.01),
        after=lambda result: seen.append(result),
    )
    assert done.calls == len(seen) == 5
    assert 0.002 <= done.best_s <= done.median_s
    assert done.best_s < 0.008


def test_a_window_lasts_as_long_as_asked() -> None:
    begin = time.perf_counter()
    done = window(lambda: spin(0.001), seconds=0.1)
    assert time.perf_counter() - begin >= 0.1
    assert 10 < done.calls <= 100


def test_a_busy_thread_is_awake_and_a_sleeping_one_is_not() -> None:
    busy = max(window(lambda: spin(0.002), seconds=0.05).awake for _ in range(5))
    asleep = window(lambda: time.sleep(0.01), seconds=0.05).awake
    assert asleep < 0.2
    assert busy > 2 * asleep


@pytest.mark.parametrize(("cores", "quiet"), [(0.0, True), (0.07, True), (0.5, False), (float("nan"), True)])
def test_quiet_means_few_other_cores(cores: float, quiet: bool) -> None:
    assert Window(1.0, 1.0, 1, cores, 1.0).quiet is quiet


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_the_paged_read_reads_the_pages_of_the_batch_and_nothing_else(layout: str, kv_dtype: str) -> None:
    case = BenchCase("s", "c", ((1, 5, 40), (2, 1, 16)), Heads(4, 2, 64, 32), kv_dtype=kv_dtype, layout=layout)
    inputs = build(case.attention_case(), poison="zero")
    limit = limits.paged_read([inputs])
    pages, size = 3 + 2 + 2, inputs.k_cache.element_size()
    assert limit.amount == pages * 16 * 2 * (64 + 32) * size
    held = torch.cat([inputs.block_table[r, : -(-n // 16)] for r, n in enumerate(inputs.seq_lens.tolist())]).long()
    k_sums, v_sums = limit.calls[0]()  # type: ignore[misc]
    for sums, pool in ((k_sums, inputs.k_cache), (v_sums, inputs.v_cache)):
        pages_first = pool.transpose(1, 2) if layout == "hnd" else pool
        words = pages_first[held].contiguous().flatten().view(torch.uint8).view(torch.float32).double()
        finite = words[words.abs() < 1e30]  # bytes taken for float32 may be anything
        if len(finite) == len(words):
            assert float(sums.double().sum()) == pytest.approx(float(words.sum()), rel=1e-3, abs=1e-3)
        else:
            assert kv_dtype == "int8"


def test_rates_count_what_they_do() -> None:
    device = torch.device("cpu")
    assert limits.matmul(torch.float32, device, size=256).amount == 2 * 256**3
    copy = limits.copy(device)
    assert copy.amount == 2 * (128 << 20)


@pytest.mark.parametrize("slow", [torch.bfloat16, torch.float32])
def test_the_rate_of_products_is_of_the_faster_dtype(slow, monkeypatch):
    """What is stored in 16 bits may be multiplied as floats, which some processors are faster at."""
    mm, seen = torch.mm, []

    def uneven(a, b):
        time.sleep(0.02 if a.dtype == slow else 0.0)
        seen.append(a.dtype)
        return mm(a, b)

    monkeypatch.setattr(torch, "mm", uneven)
    limit = limits.matmul(torch.bfloat16, torch.device("cpu"), size=16)
    seen.clear()
    for call in limit.calls:
        call()
    assert seen == [torch.float32 if slow == torch.bfloat16 else torch.bfloat16]


def test_peak_memory_of_a_call_is_what_it_allocates() -> None:
    device = torch.device("cpu")
    size = 64 << 20
    peak = memory.peak_bytes(lambda: torch.ones(size // 4).sum(), device)
    if peak is None:
        pytest.skip("this system does not say")
    assert 0.9 * size < peak < 1.2 * size
    kept = torch.ones(1000)
    small = memory.peak_bytes(lambda: kept.sum(), device)
    assert small is not None
    assert small < 4 << 20
