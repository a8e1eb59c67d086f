"""A pool is allocated as asked for, or refused in one sentence."""

from __future__ import annotations

import pytest
import torch

from chunkattn import PagedKV

BAD = {
    "no pages": ({"num_pages": 0}, ValueError, "num_pages: expected numbers from 1 to 2147483647, got 0"),
    "negative pages": ({"num_pages": -3}, ValueError, "num_pages: expected .*got -3"),
    "half a page": ({"num_pages": 1.5}, TypeError, "num_pages: expected integers, got 1.5"),
    "a flag": ({"num_pages": True}, TypeError, "num_pages: expected integers, got True"),
    "more pages than ids": ({"num_pages": 2**31}, ValueError, "num_pages: expected numbers from 1 to 2147483647"),
    "beyond 64 bits": (
        {"num_pages": 2**31 - 1, "page_size": 2**31 - 1, "num_kv_heads": 8}, ValueError,
        "num_pages: expected pools of less than 2\\^63 bytes, got",
    ),
    "beyond memory": (
        {"num_pages": 2**31 - 1, "page_size": 2**20, "num_kv_heads": 8}, MemoryError,
        "num_pages: expected pools that fit in memory, got 4611686016279904256 bytes",
    ),
    "page size 0": ({"page_size": 0}, ValueError, "page_size: expected .*got 0"),
    "no heads": ({"num_kv_heads": 0}, ValueError, "num_kv_heads: expected .*got 0"),
    "head dim 60": ({"head_dim": 60}, ValueError, "head_dim: expected a multiple of 8 from 8 to 256, got 60"),
    "head dim 264": ({"head_dim": 264}, ValueError, "head_dim: expected a multiple of 8 from 8 to 256, got 264"),
    "value dim 4": ({"head_dim_v": 4}, ValueError, "head_dim_v: expected .*got 4"),
    "head dim text": ({"head_dim": "64"}, TypeError, "head_dim: expected integers, got '64'"),
    "int64": ({"dtype": torch.int64}, TypeError, "dtype: expected bfloat16, .* int8, got torch.int64"),
    "float64": ({"dtype": torch.float64}, TypeError, "dtype: expected .*got torch.float64"),
    "dtype text": ({"dtype": "bf16"}, TypeError, "dtype: expected .*got bf16"),
    "layout": ({"layout": "NDH"}, ValueError, "layout: expected 'NHD' or 'HND', got 'NDH'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_allocate_refuses(name):
    change, error, message = BAD[name]
    with pytest.raises(error, match=f"^{message}"):
        PagedKV.allocate(**{"num_pages": 4, "page_size": 16, "num_kv_heads": 2, "head_dim": 64, **change})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_allocate(layout, dtype):
    kv = PagedKV.allocate(3, 16, 2, 64, head_dim_v=32, dtype=dtype, layout=layout)
    assert (kv.k_cache.shape, kv.v_cache.shape) == ((3, 16, 2, 64), (3, 16, 2, 32))
    assert kv.k_cache.dtype == kv.v_cache.dtype == dtype
    assert kv.k_cache.stride(2 if layout == "NHD" else 1) == 64


def test_from_fused_refuses():
    with pytest.raises(TypeError, match="pool: expected a tensor, got NoneType"):
        PagedKV.from_fused(None)
    with pytest.raises(ValueError, match=r"pool: expected .*got .3, 1, 16, 2, 64."):
        PagedKV.from_fused(torch.zeros(3, 1, 16, 2, 64))
    with pytest.raises(ValueError, match="layout: expected"):
        PagedKV.from_fused(torch.zeros(3, 2, 16, 2, 64), "nhd")
