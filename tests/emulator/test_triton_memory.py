"""Traffic of the memory-bound Triton kernels: sectors touched against the bytes that must move.

A sector is 32 bytes. Useful bytes are each input and output once, angles once a token for K and for q.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import chunkattn

from . import triton_backend
from .launch import UNCHECKED
from .session import emulated

triton_backend.skip_unless_available()

ALLOWANCE = 1.05
BF16 = torch.bfloat16
on_archs = pytest.mark.parametrize("arch", [80, 90])


def sectors(arch: int, call) -> int:
    """Of the only launch of a call."""
    with emulated(arch, replace(UNCHECKED, count_memory=True)) as session:
        call()
    (launch,) = session.launches
    return launch.counters["global_sectors"]


def size(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("kv_dtype", [BF16, torch.float8_e4m3fn])
@on_archs
def test_append_kv(arch, kv_dtype, rope, monkeypatch):
    """210 tokens, 8 KV heads, 16 query heads, D 128, in the large blocks of a step of thousands of tokens."""
    monkeypatch.setattr("chunkattn.backends.triton.append_kv._MANY_BLOCKS", 1)
    tokens, page_size = 210, 16
    k, v = (torch.randn(tokens, 8, 128).to(BF16) for _ in range(2))
    q = torch.randn(tokens, 16, 128).to(BF16)
    columns = -(-tokens // page_size)
    bits = torch.int16 if kv_dtype == BF16 else torch.uint8
    pools = [torch.zeros(columns, page_size, 8, 128, dtype=bits).view(kv_dtype) for _ in range(2)]
    scale = None if kv_dtype == BF16 else torch.ones(())
    batch = torch.randperm(columns).int()[None], torch.tensor([0, tokens]).int(), torch.tensor([tokens]).int()
    cos, sin = torch.randn(tokens, 64), torch.randn(tokens, 64)
    options = {"rope": chunkattn.Rope(cos, sin), "q": q} if rope else {}
    touched = sectors(
        arch,
        lambda: chunkattn.append_kv(k, v, *pools, *batch, k_scale=scale, v_scale=scale, **options, backend="triton"),
    )
    written = 2 * tokens * 8 * 128 * kv_dtype.itemsize
    useful = size(k, v) + written + (2 * size(q) + size(cos, sin) * 2 if rope else 0)
    print(f"append_kv sm_{arch} {kv_dtype} rope {rope}: {32 * touched / useful:.3f} of the useful bytes")
    assert 1.0 <= 32 * touched / useful <= ALLOWANCE


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@on_archs
def test_merge_states(arch, dtype):
    a, b, out = (torch.randn(300, 8, 128).to(dtype) for _ in range(3))
    lse_a, lse_b, lse = torch.randn(3, 300, 8)
    touched = sectors(arch, lambda: chunkattn.merge_states(a, lse_a, b, lse_b, out=out, lse=lse, backend="triton"))
    useful = size(a, b, out, lse_a, lse_b, lse)
    print(f"merge_states sm_{arch} {dtype}: {32 * touched / useful:.3f} of the useful bytes")
    assert 1.0 <= 32 * touched / useful <= ALLOWANCE


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@on_archs
def test_page_moves(arch, layout):
    cache = chunkattn.PagedKV.allocate(12, 16, 8, 128, layout=layout).k_cache.normal_()
    pages = torch.tensor([3, 7, 0, 11])
    out = torch.empty(4, *cache.shape[1:], dtype=cache.dtype)
    touched = sectors(arch, lambda: chunkattn.gather_pages(cache, pages, out=out, backend="triton"))
    print(f"gather_pages sm_{arch} {layout}: {32 * touched / (2 * size(out)):.3f} of the useful bytes")
    assert 1.0 <= 32 * touched / (2 * size(out)) <= ALLOWANCE
    assert torch.equal(out, cache[pages])
