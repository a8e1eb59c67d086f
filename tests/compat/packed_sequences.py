"""Sequences packed one after another, what attention over them is, and the same keys in scattered pages."""

from __future__ import annotations

import torch
from dense_attention import dense_attention

from chunkattn.testing import assert_lse_close, assert_rows_close

INT32 = torch.int32
Q_LENS, K_LENS = [5, 1, 0, 9, 3], [5, 20, 4, 33, 1]


def ends(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(INT32)


def packed(dtype=torch.bfloat16, heads=(4, 2), dims=(32, 32), seed=0):
    torch.manual_seed(seed)
    q = torch.randn(sum(Q_LENS), heads[0], dims[0]).to(dtype)
    k = torch.randn(sum(K_LENS), heads[1], dims[0]).to(dtype)
    return q, k, torch.randn(sum(K_LENS), heads[1], dims[1]).to(dtype)


def expected_packed(q, k, v, q_lens=Q_LENS, k_lens=K_LENS, slopes=None, **options):
    states = [
        dense_attention(*parts, slopes=None if slopes is None else slopes.expand(len(q_lens), -1)[i], **options)
        for i, parts in enumerate(zip(q.split(q_lens), k.split(k_lens), v.split(k_lens)))
    ]
    return tuple(torch.cat(parts) for parts in zip(*states))


def check(out, lse_heads_first, expected):
    assert_rows_close(out, expected[0])
    assert_lse_close(lse_heads_first.t(), expected[1])


def paged(x, lengths, page_size, seed=0):
    """A scattered pool of packed segments, garbage elsewhere, and its table."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-n // page_size) for n in lengths]
    order = torch.randperm(sum(counts) + 3, generator=generator).to(INT32)
    pool = torch.full((len(order), page_size, *x.shape[1:]), float("nan")).to(x.dtype)
    table = torch.full((len(lengths), max(counts)), -7, dtype=INT32)
    start = 0
    for row, (count, part) in enumerate(zip(counts, x.split(lengths))):
        table[row, :count] = order[start : start + count]
        start += count
        for position in range(part.shape[0]):
            pool[table[row, position // page_size], position % page_size] = part[position]
    return pool, table
