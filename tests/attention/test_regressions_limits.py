"""Addresses beyond 31 and 32 bits, in pools that are reserved but hardly touched (d20, d21)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import chunkattn
from chunkattn.testing import assert_rows_close

PAGE, HKV, D = 16, 8, 128  # 16,384 elements a page
I32 = torch.int32


def untouched(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory that the system commits page by page when it is written."""
    return torch.empty(shape, dtype=dtype)


def pools(kind: str, num_pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "interleaved":
        return untouched(num_pages, 2, PAGE, HKV, D, dtype=torch.bfloat16).unbind(1)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float8_e4m3fn
    return untouched(num_pages, PAGE, HKV, D, dtype=dtype), untouched(num_pages, PAGE, HKV, D, dtype=dtype)


# In elements and bytes, page ids whose offset wraps in signed or unsigned 32 bits.
PAGES = {
    "bfloat16": (65536, 131071, 131072, 131073),
    "interleaved": (32768, 65535, 65536, 65537),
    "float8": (65536, 131071, 131072, 131073),
}


@pytest.mark.parametrize("kind", PAGES)
def test_d20_pages_beyond_31_bits_are_appended_to_and_read(kind, backend):
    k_cache, v_cache = pools(kind, max(PAGES[kind]) + 1)
    scales = {} if kind != "float8" else {"k_scale": torch.tensor(1.0), "v_scale": torch.tensor(1.0)}
    stride = k_cache.stride(0)
    for page in PAGES[kind]:
        # Where a 32-bit offset, in elements or in bytes, would land.
        wrapped = {(page * stride * unit) % 2**32 // (stride * unit) for unit in (1, k_cache.element_size())}
        wrapped |= {(page * stride * unit) % 2**31 // (stride * unit) for unit in (1, k_cache.element_size())}
        wrapped = {other for other in wrapped if other != page}
        for other in wrapped:
            k_cache[other].view(torch.uint8).fill_(0x11)
            v_cache[other].view(torch.uint8).fill_(0x22)
        generator = torch.Generator().manual_seed(page)
        k = torch.randint(0, 2, (9, HKV, D), generator=generator).mul(2).sub(1).to(torch.bfloat16)
        v = torch.randint(-8, 9, (9, HKV, D), generator=generator).to(torch.bfloat16)
        table = torch.tensor([[page]], dtype=I32)
        lengths = torch.tensor([0, 9], dtype=I32), torch.tensor([9], dtype=I32)
        chunkattn.append_kv(k, v, k_cache, v_cache, table, *lengths, **scales, backend=backend)
        assert torch.equal(k_cache[page, :9].to(torch.bfloat16), k)
        q = 8.0 * k[[4]].repeat_interleave(2, 1)
        lengths = torch.tensor([0, 1], dtype=I32), torch.tensor([9], dtype=I32)
        out = chunkattn.attention(q, k_cache, v_cache, table, *lengths, **scales, backend=backend)
        assert_rows_close(out, v[[4]].repeat_interleave(2, 1).double())
        for other in wrapped:
            assert (k_cache[other].view(torch.uint8) == 0x11).all()
            assert (v_cache[other].view(torch.uint8) == 0x22).all()


@pytest.mark.parametrize("num_requests", [1000, pytest.param(65536, marks=pytest.mark.full)])
def test_d21_very_many_decodes(num_requests, backend):
    """65,536 requests of one key each, beyond the grid limits of some devices: every row is its value."""
    pool = torch.randn(num_requests, 1, 1, 16, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(num_requests, generator=torch.Generator().manual_seed(2))
    lengths = torch.arange(num_requests + 1, dtype=I32), torch.ones(num_requests, dtype=I32)
    q = torch.randn(num_requests, 2, 16, generator=torch.Generator().manual_seed(3))
    out, lse = chunkattn.attention(q, pool, pool, order.to(I32)[:, None], *lengths, return_lse=True, backend=backend)
    expected = pool[order, 0].expand(-1, 2, -1)
    assert_rows_close(out, expected.double())
    assert torch.allclose(lse.double(), (q.double() * expected).sum(-1) / 4, atol=1e-5)


@pytest.mark.full
def test_d21_more_than_31_bits_of_query_elements():
    """4,097 requests of 64 tokens, 32 heads of 256: 2,148,007,936 elements of q, all over one 64-token context."""
    requests, q_len, heads, dim = 4097, 64, 32, 256
    needed = 3 * requests * q_len * heads * dim * 2
    memory = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in memory if line.startswith("MemAvailable"))
    if available < needed:
        pytest.skip(f"needs {needed >> 30} GiB of memory, {available >> 30} are free")
    tokens = requests * q_len
    generator = torch.Generator().manual_seed(0)
    k_cache, v_cache = torch.randn(2, 4, PAGE, 2, dim, generator=generator).to(torch.bfloat16)
    table = torch.tensor([[2, 0, 3, 1]], dtype=I32)
    q = torch.zeros(tokens, heads, dim, dtype=torch.bfloat16)  # untouched pages of zeros
    some = [0, requests // 2, requests - 1]
    for request in some:
        rows = torch.randn(q_len, heads, dim, generator=generator)
        q[request * q_len : (request + 1) * q_len] = rows.to(torch.bfloat16)
    cu = torch.arange(0, tokens + 1, q_len, dtype=I32)
    lens = torch.full((requests,), q_len, dtype=I32)
    out = chunkattn.attention(q, k_cache, v_cache, table.expand(requests, -1), cu, lens, backend="cpu")
    for request in some:
        rows = slice(request * q_len, (request + 1) * q_len)
        alone = chunkattn.attention(q[rows].clone(), k_cache, v_cache, table, cu[:2], lens[:1], backend="reference")
        assert_rows_close(out[rows], alone.double(), budget=2 * torch.finfo(torch.bfloat16).eps)
    # q = 0: every row is the mean of the values it sees.
    mean = v_cache[table[0].long()].view(-1, 2, dim).double().cumsum(0) / torch.arange(1, 65)[:, None, None]
    assert_rows_close(out[q_len : 2 * q_len], mean.repeat_interleave(16, 1))


def test_strided_pools_wrap_at_ordinary_page_counts(backend):
    """A cross-layer pool: layer stride large, few pages, offsets beyond 2^31 elements all the same."""
    layers, pages = 32, 140
    pool = untouched(pages, layers, 2, 256, 8, 128, dtype=torch.bfloat16)
    assert pool.stride(0) * (pages - 1) > 2**31
    k_cache, v_cache = pool[:, layers - 1].unbind(1)
    k = torch.randn(3, 8, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    table = torch.tensor([[pages - 1]], dtype=I32)
    lengths = torch.tensor([0, 3], dtype=I32), torch.tensor([3], dtype=I32)
    chunkattn.append_kv(k, -k, k_cache, v_cache, table, *lengths, backend=backend)
    assert torch.equal(pool[pages - 1, layers - 1, 0, :3], k)
    out, lse = chunkattn.attention(
        torch.zeros_like(k), k_cache, v_cache, table, *lengths, return_lse=True, backend=backend
    )
    assert_rows_close(out[:1], -k[:1].double())
    assert lse[2].tolist() == pytest.approx([math.log(3)] * 8, abs=1e-5)
