"""Input sets: as many as fit, no two with the same data or the same pages."""

from __future__ import annotations

import torch

from chunkattn.bench.case import BenchCase, Heads
from chunkattn.bench.inputs import input_sets

CASE = BenchCase("inputs", "two requests", ((2, 3, 200),), Heads(4, 2, 16, 16))


def test_sets_differ_in_data_and_pages_with_their_number_and_the_seed() -> None:
    sets = input_sets(CASE, "cpu", most=2, max_bytes=1 << 30)
    assert len(sets) == 2
    sets += input_sets(CASE.but(seed=5), "cpu", most=2, max_bytes=1 << 30)
    for number, one in enumerate(sets):
        for other in sets[:number]:
            assert not torch.equal(one.q, other.q)
            assert not torch.equal(one.block_table, other.block_table)


def test_the_same_seed_gives_the_same_set() -> None:
    one, other = (input_sets(CASE, "cpu", most=1, max_bytes=1 << 30)[0] for _ in range(2))
    assert torch.equal(one.k_cache, other.k_cache)
    assert torch.equal(one.block_table, other.block_table)


def test_bytes_are_bounded_but_one_set_is_made() -> None:
    assert len(input_sets(CASE, "cpu", most=8, max_bytes=1)) == 1
