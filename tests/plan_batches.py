"""Batches and specs that plans are tried on: corners by name, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from chunkattn.planning.work import WorkSpec


@dataclass(frozen=True)
class Lengths:
    """Query and KV lengths of a batch."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]

    @classmethod
    def of(cls, q_lens: Sequence[int], kv_lens: Sequence[int]) -> Lengths:
        return cls(tuple(q_lens), tuple(kv_lens))

    @property
    def cu_seqlens_q(self) -> list[int]:
        return [0, *accumulate(self.q_lens)]


BATCHES = {
    "nothing": Lengths.of([], []),
    "one": Lengths.of([1], [1]),
    "one_long_decode": Lengths.of([1], [9001]),
    "empty_requests": Lengths.of([0, 1, 0, 17, 0, 0], [0, 65, 33, 40, 0, 7]),
    "no_keys": Lengths.of([5, 1, 3], [0, 0, 2]),
    "mixed": Lengths.of([1, 130, 1, 5, 1, 0, 64], [4100, 700, 16, 5, 2048, 9, 3000]),
    "huge_among_tiny": Lengths.of([1] * 40 + [3] + [1] * 40, [3] * 40 + [20000] + [2] * 40),
    "more_queries_than_keys": Lengths.of([9, 40, 70], [2, 0, 69]),
}

SPECS = [
    WorkSpec(4, 2, num_workers=2),
    WorkSpec(8, 1, num_workers=132, decode_rows=16, tile_rows=64, kv_tile=64),
    WorkSpec(4, 4, causal=False, window_left=50, window_right=9, num_workers=7, decode_heads=3),
    WorkSpec(4, 2, invariant=True, num_workers=40, invariant_split=512),
    WorkSpec(4, 2, num_splits=5),
    WorkSpec(6, 2, window_left=0, num_workers=50, kv_tile=16, min_split=16),
    WorkSpec(8, 2, num_workers=132, items_per_worker=8, tile_rows=128, decode_rows=16, kv_tile=64, decode_cost=160,
             split_cost=128),
    WorkSpec(8, 2, window_left=64, num_workers=33, tile_rows=16, kv_tile=16, min_split=16, decode_cost=90),
]  # fmt: skip


def random_lengths(rng: random.Random, *, most_requests: int, longest_kv: int, longest_q: int) -> Lengths:
    """A batch with any share of empty requests, decodes, short chunks and prompts; KV lengths over all magnitudes."""
    q_lens, kv_lens = [], []
    weights = [rng.random() for _ in range(4)]
    for _ in range(rng.randint(0, most_requests)):
        kind = rng.choices(["empty", "decode", "short", "prompt"], weights)[0]
        q_len = {"empty": 0, "decode": 1, "short": rng.randint(2, 8), "prompt": rng.randint(1, longest_q)}[kind]
        kv_len = int(longest_kv ** rng.random()) - rng.randint(0, 1)
        q_lens.append(q_len)
        kv_lens.append(kv_len if rng.random() < 0.1 else kv_len + q_len)
    return Lengths.of(q_lens, kv_lens)


def random_spec(rng: random.Random) -> WorkSpec:
    """A spec of some machine, with any of the operator's options that a plan depends on."""
    group, kv_heads = rng.choice([1, 2, 4, 5, 8]), rng.choice([1, 2, 3, 8])
    invariant = rng.random() < 0.2
    kv_tile = rng.choice([16, 64, 128])
    return WorkSpec(
        group * kv_heads,
        kv_heads,
        causal=rng.random() < 0.8,
        window_left=rng.choice([-1, -1, -1, 0, 127, 1000]),
        window_right=rng.choice([-1, -1, 0, 40]),
        invariant=invariant,
        num_splits=0 if invariant else rng.choice([0, 0, 0, 1, 3, 40]),
        num_workers=rng.choice([1, 2, 7, 108, 132, 264]),
        items_per_worker=rng.choice([1, 4, 12]),
        tile_rows=rng.choice([16, 64, 128, 384]),
        decode_rows=rng.choice([1, 8, 16]),
        decode_heads=rng.choice([1, 1, kv_heads]),
        kv_tile=kv_tile,
        min_split=kv_tile * rng.choice([1, 2, 4]),
        invariant_split=kv_tile * rng.choice([4, 16]),
        decode_cost=rng.choice([0, 40, 160, 700]),
        split_cost=rng.choice([0, 16, 128]),
    )
