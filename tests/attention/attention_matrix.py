"""The generated matrix: every factor of the operator and arrays of cases that cover all pairs of their levels."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch

from chunkattn.testing import BATCHES, AttentionCase

# (kv dtype, None = that of q; how its scales are indexed)
QUANTIZED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
KV_FORMATS = [
    (None, "none"),
    (torch.float8_e4m3fn, "none"),
    *((dtype, mode) for dtype in QUANTIZED for mode in ("tensor", "head", "token_head")),
]
HEAD_COUNTS = [(2, 2), (9, 3), (8, 2), (5, 1), (14, 2), (8, 1), (12, 1), (32, 2), (71, 1)]

FACTORS: dict[str, list[Any]] = {
    "dtype": [torch.bfloat16, torch.float16, torch.float32],
    "kv": KV_FORMATS,
    "heads": HEAD_COUNTS,
    "head_dims": [*((d, d) for d in (16, 40, 64, 72, 80, 96, 112, 128, 256)), (192, 128)],
    "page_size": [1, 8, 16, 24, 32, 64, 128, 256, 528],
    "batch": [name for name in BATCHES if name != "no_tokens"],
    "causal": [True, False],
    "window": [(-1, -1), (0, -1), (31, -1), (200, -1), (5, 3), (-1, 7), (128, 0)],
    "softcap": [0.0, 1.0, 30.0],
    "alibi": [None, "head", "request"],
    "sinks": [False, True],
    "tree": [False, True],
    "softmax_scale": [None, 0.3],
    "layout": ["nhd", "hnd", "fused", "layers", "lanes"],
    "q_layout": ["contiguous", "fused_qkv", "head_major", "offset"],
    "padding": [0, 3],
    "mode": [(False, None), (True, None), (False, 1), (False, 3), (False, 16)],  # invariant, num_splits
}


def covering_array(factors: dict[str, list[Any]], seed: int) -> list[dict[str, Any]]:
    """Rows that together hold every pair of levels of every two factors (greedy, so a little more than the minimum)."""
    rng = random.Random(seed)
    names = list(factors)
    open_pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(factors[names[a]]))
        for j in range(len(factors[names[b]]))
    }
    rows = []
    while open_pairs:
        a, i, b, j = rng.choice(sorted(open_pairs)) if len(open_pairs) < 500 else next(iter(open_pairs))
        row = {a: i, b: j}
        order = [f for f in range(len(names)) if f not in row]
        rng.shuffle(order)
        for factor in order:
            levels = list(range(len(factors[names[factor]])))
            rng.shuffle(levels)
            row[factor] = max(levels, key=lambda level: _gain(open_pairs, row, factor, level))
        open_pairs -= {(x, row[x], y, row[y]) for x, y in itertools.combinations(range(len(names)), 2)}
        rows.append({names[f]: factors[names[f]][level] for f, level in sorted(row.items())})
    return rows


def _gain(open_pairs: set[tuple[int, int, int, int]], row: dict[int, int], factor: int, level: int) -> int:
    pairs = ((f, i, factor, level) if f < factor else (factor, level, f, i) for f, i in row.items())
    return sum(pair in open_pairs for pair in pairs)


def case_of(name: str, levels: dict[str, Any], seed: int = 0) -> AttentionCase:
    """The case of one row of the array."""
    q_lens, kv_lens = BATCHES[levels["batch"]]
    kv_dtype, scale_mode = levels["kv"]
    invariant, num_splits = levels["mode"]
    return AttentionCase(
        f"{name}-{levels['batch']}",
        q_lens,
        kv_lens,
        num_q_heads=levels["heads"][0],
        num_kv_heads=levels["heads"][1],
        head_dim=levels["head_dims"][0],
        head_dim_v=levels["head_dims"][1],
        page_size=levels["page_size"],
        dtype=levels["dtype"],
        kv_dtype=kv_dtype,
        scale_mode=scale_mode,
        layout=levels["layout"],
        q_layout=levels["q_layout"],
        causal=levels["causal"],
        window=levels["window"],
        softcap=levels["softcap"],
        softmax_scale=levels["softmax_scale"],
        alibi=levels["alibi"],
        sinks=levels["sinks"],
        tree=levels["tree"],
        invariant=invariant,
        num_splits=num_splits,
        padding=levels["padding"],
        seed=seed,
    )


def matrix(seed: int) -> list[AttentionCase]:
    """One covering array as cases."""
    rows = covering_array(FACTORS, seed)
    return [case_of(f"s{seed}r{index}", row, seed=1000 * seed + index) for index, row in enumerate(rows)]
