"""The plan: every visible key once, the native core's plan word for word, damage noticed, slots within their bound."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from plan_batches import BATCHES, SPECS, Lengths, random_lengths, random_spec

import chunkattn
from chunkattn.planning import work
from chunkattn.planning.work import WorkSpec
from chunkattn.testing import AttentionCase, build

HAS_NATIVE = importlib.util.find_spec("chunkattn._native") is not None
native = pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built")


def plan_of(spec: WorkSpec, lengths: Lengths) -> list[int]:
    return work.make_plan(spec, lengths.cu_seqlens_q, lengths.kv_lens)


def items_of(spec: WorkSpec, lengths: Lengths) -> Iterator[work.WorkItem]:
    return work.items(spec, plan_of(spec, lengths), lengths.cu_seqlens_q, lengths.kv_lens)


def visible(spec: WorkSpec, q_len: int, kv_len: int, token: int) -> range:
    """Keys that a query token sees."""
    position = kv_len - q_len + token
    first = 0 if spec.window_left < 0 else position - spec.window_left
    last = kv_len - 1 if spec.window_right < 0 else position + spec.window_right
    last = min(last, position) if spec.causal else last
    return range(max(first, 0), max(min(last + 1, kv_len), max(first, 0)))


def check_coverage(spec: WorkSpec, lengths: Lengths) -> None:
    """Every (packed row, KV head, visible key) in exactly one item; splits as many as said."""
    seen: dict[tuple[int, int, int], list[range]] = {}
    splits: dict[tuple[int, range, range], set[int]] = {}
    for item in items_of(spec, lengths):
        assert 0 <= item.split < item.num_splits
        place = splits.setdefault((item.request, item.kv_heads, item.rows), set())
        assert item.split not in place
        place.add(item.split)
        rows = lengths.q_lens[item.request] * spec.group
        assert (rows <= spec.decode_rows) == item.is_decode
        assert item.num_splits == 1 or item.keys.start % spec.kv_tile == 0
        for head in item.kv_heads:
            for row in item.rows:
                seen.setdefault((item.request, head, row), []).append(item.keys)
    for (request, _, _), place in splits.items():
        assert len(place) == max(item for item in place) + 1, request
    for request, (q_len, kv_len) in enumerate(zip(lengths.q_lens, lengths.kv_lens)):
        for head in range(spec.num_kv_heads):
            for row in range(q_len * spec.group):
                ranges = sorted(seen.pop((request, head, row)), key=lambda keys: keys.start)
                for before, after in pairwise(ranges):
                    assert before.stop == after.start
                keys = visible(spec, q_len, kv_len, row // spec.group)
                assert not keys or (ranges[0].start <= keys.start and keys.stop <= ranges[-1].stop)
    assert not seen


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("spec", SPECS)
def test_every_visible_key_is_covered_once(name, spec):
    check_coverage(spec, BATCHES[name])


@pytest.mark.parametrize("seed", range(60))
def test_random_batches_are_covered_once(seed):
    rng = random.Random(seed)
    check_coverage(random_spec(rng), random_lengths(rng, most_requests=12, longest_kv=3000, longest_q=200))


@pytest.mark.parametrize("seed", range(200))
def test_partial_rows_stay_within_their_bound(seed):
    rng = random.Random(seed)
    spec, lengths = random_spec(rng), random_lengths(rng, most_requests=200, longest_kv=200_000, longest_q=4000)
    words = plan_of(spec, lengths)
    assert words[5] <= work.max_partial_rows(spec, sum(lengths.q_lens), max(lengths.kv_lens, default=0))


def test_totals_go_beyond_32_bits():
    lengths = Lengths.of([4] * 5000, [2**31 - 1] * 5000)
    words = plan_of(WorkSpec(128, 8, num_splits=2**16), lengths)
    assert words[4] == 5000 * 8 * 2**16 > 2**31
    assert words[5] == 5000 * 2**16 * 4 * 128 > 2**37


def test_any_changed_word_changes_a_checksum():
    lengths = BATCHES["mixed"]
    spec = WorkSpec(4, 2, num_workers=40)
    words = plan_of(spec, lengths)
    tables = words[work.HEADER_WORDS :]
    right = work.checksum(tables)
    assert right == words[7]
    for place, word in enumerate(tables):
        for changed in (word + 1, word - 1, word ^ (1 << 40), -word - 1):
            assert work.checksum([*tables[:place], changed, *tables[place + 1 :]]) != right
        for other in range(place):
            if tables[other] != word:  # exchanged, and moved by one another's difference
                swapped = list(tables)
                swapped[place], swapped[other] = tables[other], word
                assert work.checksum(swapped) != right
                shifted = list(tables)
                shifted[place], shifted[other] = word + 1, tables[other] - 1
                assert work.checksum(shifted) != right


def test_other_lengths_change_the_checksum():
    spec = WorkSpec(4, 2)
    seen = set()
    for q_lens, kv_lens in (((1, 2), (9, 9)), ((2, 1), (9, 9)), ((1, 2), (9, 10)), ((1, 2), (10, 9)), ((1, 1), (9, 9))):
        seen.add(plan_of(spec, Lengths.of(q_lens, kv_lens))[6])
    assert len(seen) == 5


def native_plan(case: AttentionCase, layout: str) -> tuple[list[int], list[int], list[int]]:
    inputs = build(case)
    plan = chunkattn.plan(
        inputs.cu_seqlens_q,
        inputs.seq_lens,
        num_q_heads=case.num_q_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        page_size=case.page_size,
        dtype=case.dtype,
        causal=case.causal,
        window=case.window,
        invariant=case.invariant,
        num_splits=case.num_splits,
        layout=layout,
        backend="cpu",
    )
    return plan.words.tolist(), inputs.cu_seqlens_q.tolist(), inputs.seq_lens.tolist()


@native
@pytest.mark.parametrize("seed", range(40))
def test_the_native_plan_is_the_same_word_for_word(seed):
    rng = random.Random(seed)
    lengths = random_lengths(rng, most_requests=20, longest_kv=3000, longest_q=300)
    invariant = rng.random() < 0.3
    case = AttentionCase(
        "plan",
        lengths.q_lens,
        lengths.kv_lens,
        num_q_heads=8,
        num_kv_heads=rng.choice([1, 2, 8]),
        causal=rng.random() < 0.8,
        window=rng.choice([(-1, -1), (0, 0), (100, -1), (700, 30)]),
        invariant=invariant,
        num_splits=None if invariant else rng.choice([None, None, 1, 5]),
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(rng.choice([1, 3, 64]))
        words, starts, lens = native_plan(case, rng.choice(["NHD", "HND"]))
    finally:
        torch.set_num_threads(before)
    spec = WorkSpec(*words[8 : work.HEADER_WORDS])
    spec = replace(spec, causal=bool(spec.causal), invariant=bool(spec.invariant))
    assert work.make_plan(spec, starts, lens) == words
