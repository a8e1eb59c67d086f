"""What the plan makes of a GPU, by the cost model of `plan_timeline`: launches end near their bound.

The numbers are of a model, not of a machine.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from plan_batches import Lengths
from plan_timeline import Gpu, Timeline, decode_cost, simulate

from chunkattn.backends import device
from chunkattn.backends.triton import config
from chunkattn.planning.work import WorkSpec, takes_decode

# (count, query tokens, history) of the requests; query heads, KV heads.
WORKLOADS = {
    "W1": ([(1, 512, 8192)], 32, 8),
    "W2": ([(1, 2048, 32768)], 32, 8),
    "W3": ([(64, 1, 4095)], 32, 8),
    "W4": ([(1, 512, 8192), (64, 1, 4095)], 32, 8),
    "W5": ([(1, 1024, 32768), (128, 1, 4095)], 32, 8),
    "W6": ([(1, 2048, 32768), (128, 1, 4095)], 8, 1),
    "W7": ([(2, 1024, 8192), (256, 1, 1023)], 32, 4),
    "W9": ([(1, 1024, 16384), (64, 1, 16383)], 32, 8),
    "W10": ([(1, 1, 131071), (31, 1, 4095)], 32, 8),
}
REACHES = (1.4, 1.8, 2.5)


def gpu_spec(num_q_heads: int, num_kv_heads: int, workers: int = 132, tile_rows: int = 128) -> WorkSpec:
    """Planned for a reach of 1.8, whatever the simulated GPU has."""
    spec = WorkSpec(
        num_q_heads,
        num_kv_heads,
        num_workers=workers,
        items_per_worker=8,
        tile_rows=tile_rows,
        decode_rows=16,
        kv_tile=64,
        split_cost=128,
    )
    return replace(spec, decode_cost=decode_cost(spec, Gpu(reach=1.8)))


def batch(groups: list[tuple[int, int, int]]) -> Lengths:
    flat = [(q, history) for count, q, history in groups for _ in range(count)]
    return Lengths.of([q for q, _ in flat], [q + history for q, history in flat])


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_end_within_a_tenth_of_their_bound(name, reach):
    groups, num_q_heads, num_kv_heads = WORKLOADS[name]
    done = simulate(gpu_spec(num_q_heads, num_kv_heads), batch(groups), Gpu(reach=reach))
    print(f"{name}, reach {reach}: {1e6 * done.seconds:.0f} us, {done.excess:+.1%} over the bound")
    assert done.bound <= done.seconds <= 1.1 * done.bound


@pytest.mark.parametrize("name", ["W3", "W4", "W5", "W9", "W10"])
def test_small_tiles_and_two_blocks_on_a_multiprocessor(name):
    groups, num_q_heads, num_kv_heads = WORKLOADS[name]
    done = simulate(gpu_spec(num_q_heads, num_kv_heads, workers=264, tile_rows=64), batch(groups))
    assert done.bound <= done.seconds <= 1.12 * done.bound


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_the_triton_backend_plans_for_an_h200(name):
    """Its own spec, at the rates it is expected to reach."""
    groups, num_q_heads, num_kv_heads = WORKLOADS[name]
    h200 = device.Gpu.of_arch(90, 132)
    spec = config.work_spec_of(h200, num_q_heads, num_kv_heads, 128, 128, torch.bfloat16)
    done = simulate(spec, batch(groups), Gpu(flops=0.45 * 790e12, bandwidth=0.8 * 4.3e12))
    print(f"{name}: {1e6 * done.seconds:.0f} us, {done.excess:+.1%} over the bound")
    assert done.bound <= done.seconds <= 1.1 * done.bound


def test_mixed_work_overlaps():
    """W4 takes hardly longer than its decodes alone; one class after the other would take 1.4 times as long."""
    groups, num_q_heads, num_kv_heads = WORKLOADS["W4"]
    done = simulate(gpu_spec(num_q_heads, num_kv_heads), batch(groups))
    assert done.seconds < 0.8 * (done.prefill_alone + done.decode_alone)


def random_mix(rng: random.Random) -> tuple[WorkSpec, Lengths]:
    heads = rng.choice([(32, 8), (8, 1), (32, 4), (64, 8), (16, 2)])
    requests = [(rng.randint(32, 2048), int(131072 ** rng.random())) for _ in range(rng.choice([0, 1, 1, 1, 2, 4]))]
    typical, skewed = 64 * int(512 ** rng.random()), rng.random() < 0.5
    for _ in range(rng.choice([0, 8, 32, 64, 128, 256])):
        spread = 16 ** rng.uniform(-1, 1) if skewed else 2 * rng.random()
        requests.append((1, int(typical * spread)))
    rng.shuffle(requests)
    return gpu_spec(*heads), Lengths.of([q for q, _ in requests], [q + history for q, history in requests])


def simulate_mixes(count: int) -> list[tuple[float, int, Timeline]]:
    """(excess, seed, timeline) of random mixes, worst first."""
    found = []
    for seed in range(count):
        spec, lengths = random_mix(random.Random(seed))
        done = simulate(spec, lengths, Gpu(reach=REACHES[seed % 3]))
        if done.bound > 0:
            found.append((done.excess, seed, done))
    return sorted(found, key=lambda entry: entry[:2], reverse=True)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_random_mixes(count):
    """Short launches are ruled by what an item costs whatever its length; from 100 us on the bound is near."""
    everything = simulate_mixes(count)
    for least in (0.0, 100e-6, 300e-6):
        found = [entry for entry in everything if entry[2].bound >= least]
        excess, seed, worst = found[0]
        print(
            f"{len(found)} mixes of {1e6 * least:.0f} us and more: median {found[len(found) // 2][0]:+.1%}, "
            f"95 % below {found[len(found) // 20][0]:+.1%}, worst {excess:+.1%} (seed {seed}, bound "
            f"{1e6 * worst.bound:.0f} us)"
        )
        assert all(entry[0] >= -1e-9 for entry in found)
        if least:
            assert found[len(found) // 2][0] < 0.08
            assert excess < (0.30 if least < 200e-6 else 0.20)


def test_which_class_a_worker_takes():
    assert takes_decode(10, 10, 0, 5, 132)
    assert not takes_decode(0, 10, 1, 5, 132)
    assert not takes_decode(0, 0, 0, 0, 132)
    assert not takes_decode(5, 10, 5, 10, 4)  # alike: one prefill item stands for those in progress
    assert takes_decode(6, 10, 5, 10, 4)
    assert not takes_decode(10, 10, 20, 20, 132)
    big = 2**31 - 1
    assert takes_decode(big, big, big // 2, big, 132)
