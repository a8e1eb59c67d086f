"""Contents with answers known in closed form: they pin masks, head maps and page lookups exactly.

Build them with ``build(case, uniform_probe(case))`` and the like.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn.testing.builder import Contents
from chunkattn.testing.case import AttentionCase


def uniform_probe(case: AttentionCase, unit: float = 1.0) -> Contents:
    """q = 0 and ``v[j] = (j + 1) * unit``: every visible key has the same weight.

    out is ``unit`` times the mean 1-based position of the visible keys and lse the natural log of their number,
    whatever K holds. Blind to K; with half-precision outputs and long contexts rely on lse.
    """
    generator = torch.Generator().manual_seed(case.seed)
    return Contents(
        q=torch.zeros(case.num_tokens, case.num_q_heads, case.head_dim),
        keys=[torch.randn(n, case.num_kv_heads, case.head_dim, generator=generator) for n in case.kv_lens],
        values=[
            (unit * torch.arange(1, n + 1, dtype=torch.float32))[:, None, None].expand(
                n, case.num_kv_heads, case.value_dim
            )
            for n in case.kv_lens
        ],
    )


def lanes_probe(case: AttentionCase) -> Contents:
    """``v[j, h, d] = h + d / 256`` for every key: any mask gives exactly that, so only heads and lanes can be wrong."""
    generator = torch.Generator().manual_seed(case.seed)
    row = torch.arange(case.num_kv_heads)[:, None] + torch.arange(case.value_dim)[None, :] / 256
    return Contents(
        q=torch.randn(case.num_tokens, case.num_q_heads, case.head_dim, generator=generator),
        keys=[torch.randn(n, case.num_kv_heads, case.head_dim, generator=generator) for n in case.kv_lens],
        values=[row.expand(n, -1, -1) for n in case.kv_lens],
    )


def lanes_expected(case: AttentionCase) -> Tensor:
    """Float64 [T, Hq, Dv] that the lanes probe must give where a row sees any key."""
    head = torch.arange(case.num_q_heads) // (case.num_q_heads // case.num_kv_heads)
    row = head[:, None].double() + torch.arange(case.value_dim, dtype=torch.float64)[None, :] / 256
    return row.expand(case.num_tokens, -1, -1)


def needle_probe(case: AttentionCase, targets: list[list[int]], beta: float = 8.0) -> Contents:
    """K rows of random signs, q of every token ``beta * K[target]`` of its request, v distinct for every key.

    out is ``v[target]`` to within rounding (the other keys' scores lie many times lower), which pins page lookups,
    K strides and offsets.

    Args:
        case: needs ``head_dim >= 40`` for the needle to stand out among thousands of keys.
        targets: for each request the key position that each of its rows looks for; must be visible to the row.
        beta: sharpness.
    """
    generator = torch.Generator().manual_seed(case.seed)
    keys, values = [], []
    for n in case.kv_lens:
        signs = torch.randint(0, 2, (n, case.num_kv_heads, case.head_dim), generator=generator)
        keys.append((signs * 2 - 1).float())
        values.append(torch.randn(n, case.num_kv_heads, case.value_dim, generator=generator).to(case.dtype).float())
    group = case.num_q_heads // case.num_kv_heads
    rows = [
        (beta * request_keys[position]).repeat_interleave(group, 0)
        for request_keys, positions in zip(keys, targets, strict=True)
        for position in positions
    ]
    rows += [torch.zeros(case.num_q_heads, case.head_dim)] * case.padding
    return Contents(q=torch.stack(rows), keys=keys, values=values)


def needle_expected(case: AttentionCase, contents: Contents, targets: list[list[int]]) -> Tensor:
    """[tokens, Hq, Dv]: the value at each row's target."""
    group = case.num_q_heads // case.num_kv_heads
    rows = [
        values[position].repeat_interleave(group, 0)
        for values, positions in zip(contents.values, targets, strict=True)
        for position in positions
    ]
    return torch.stack(rows)
