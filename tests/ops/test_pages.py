"""copy_pages, gather_pages and scatter_pages move whole pages, bit for bit, through any strides."""

from __future__ import annotations

import pytest
import torch

import chunkattn
from chunkattn.testing import AttentionCase, assert_bitwise_equal, build

CASE = AttentionCase("pages", (1, 1), (40, 33), spare_pages=6, head_dim=24, page_size=16)
POOLS = {
    "nhd": CASE,
    "hnd": CASE.but(layout="hnd"),
    "fused": CASE.but(layout="fused"),
    "layers": CASE.but(layout="layers"),
    "lanes": CASE.but(layout="lanes"),
    "fp32": CASE.but(dtype=torch.float32, page_size=1),
    "e4m3": CASE.but(kv_dtype=torch.float8_e4m3fn, layout="hnd"),
    "e5m2": CASE.but(kv_dtype=torch.float8_e5m2, layout="lanes"),
    "int8": CASE.but(kv_dtype=torch.int8),
}


@pytest.fixture(params=POOLS)
def pool(request):
    return build(POOLS[request.param], poison="garbage").k_cache


def whole(tensor):
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).view(torch.uint8)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_then_scatter_moves_pages(pool, index_dtype, backend):
    pages = torch.tensor([5, 0, 7], dtype=index_dtype)
    block = chunkattn.gather_pages(pool, pages, backend=backend)
    assert block.shape == (3, *pool.shape[1:])
    for row, page in zip(block, pages.tolist(), strict=True):
        assert_bitwise_equal(row, pool[page])
    before = pool.clone()
    storage = whole(pool).clone()
    targets = torch.tensor([1, 6, 2], dtype=index_dtype)
    chunkattn.scatter_pages(block, pool, targets, backend=backend)
    for row, page in zip(block, targets.tolist(), strict=True):
        assert_bitwise_equal(pool[page], row)
    for page in set(range(pool.shape[0])) - {1, 6, 2}:
        assert_bitwise_equal(pool[page], before[page])
    for page in targets.tolist():
        pool[page].copy_(before[page])
    assert torch.equal(whole(pool), storage)  # spare lanes, other layers and V kept their bits


def test_copy_pages(pool, backend):
    before = pool.clone()
    chunkattn.copy_pages(pool, torch.tensor([3, 3, 0]), torch.tensor([1, 2, 7]), backend=backend)
    moved = {1: 3, 2: 3, 7: 0}
    for page in range(pool.shape[0]):
        assert_bitwise_equal(pool[page], before[moved.get(page, page)])


def test_gather_into_a_strided_block(pool, backend):
    wide = torch.zeros((2, 3, *pool.shape[1:]), dtype=torch.float32).to(pool.dtype)
    out = wide[:, 1]
    chunkattn.gather_pages(pool, torch.tensor([4, 2]), out=out, backend=backend)
    assert wide[:, ::2].view(torch.uint8).count_nonzero() == 0
    assert_bitwise_equal(out[0], pool[4])
    assert_bitwise_equal(out[1], pool[2])


def test_no_pages(pool, backend):
    before = pool.clone()
    none = torch.empty(0, dtype=torch.int32)
    assert chunkattn.gather_pages(pool, none, backend=backend).shape == (0, *pool.shape[1:])
    chunkattn.copy_pages(pool, none, none, backend=backend)
    chunkattn.scatter_pages(before[:0], pool, none, backend=backend)
    assert_bitwise_equal(pool, before)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float64, torch.bool, torch.float8_e4m3fnuz])
def test_dtypes_that_no_cache_has_are_refused(dtype, backend):
    before = torch.arange(4 * 16, dtype=torch.float32).view(4, 16).to(dtype)
    pool = before.clone()
    source, target = torch.tensor([3]), torch.tensor([1])
    for call in (
        lambda: chunkattn.copy_pages(pool, source, target, backend=backend),
        lambda: chunkattn.gather_pages(pool, source, backend=backend),
        lambda: chunkattn.scatter_pages(before[:1], pool, target, backend=backend),
    ):
        with pytest.raises(TypeError, match=f"^cache: expected a dtype that a KV cache can have, got {dtype}$"):
            call()
    assert torch.equal(pool.view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_bytes_and_integers_beside_a_cache_are_moved(dtype, backend):
    pool = torch.arange(4 * 16).to(dtype).view(4, 16)
    expected = pool[[0, 3, 2, 3]]
    chunkattn.copy_pages(pool, torch.tensor([3]), torch.tensor([1]), backend=backend)
    assert_bitwise_equal(pool, expected)


@pytest.mark.parametrize("page", [-1, 12, 2**31 - 1])
def test_page_ids_outside_the_pool_are_refused(page, backend):
    pool = build(CASE, poison="zero").k_cache
    before = pool.clone()
    bad, good = torch.tensor([0, page]), torch.tensor([1, 2])
    assert pool.shape[0] <= 12
    with pytest.raises(ValueError, match=f"source: expected .*got {page}"):
        chunkattn.copy_pages(pool, bad, good, backend=backend)
    with pytest.raises(ValueError, match=f"target: expected .*got {page}"):
        chunkattn.copy_pages(pool, good, bad, backend=backend)
    with pytest.raises(ValueError, match=f"pages: expected .*got {page}"):
        chunkattn.gather_pages(pool, bad, backend=backend)
    with pytest.raises(ValueError, match=f"pages: expected .*got {page}"):
        chunkattn.scatter_pages(before[:2], pool, bad, backend=backend)
    assert_bitwise_equal(pool, before)


def test_ambiguous_moves_are_refused(backend):
    pool = build(CASE, poison="zero").k_cache
    with pytest.raises(ValueError, match="target: expected"):
        chunkattn.copy_pages(pool, torch.tensor([0, 1]), torch.tensor([2, 2]), backend=backend)
    with pytest.raises(ValueError, match="target: expected"):
        chunkattn.copy_pages(pool, torch.tensor([0, 1]), torch.tensor([1, 2]), backend=backend)
    with pytest.raises(ValueError, match="target: expected"):
        chunkattn.copy_pages(pool, torch.tensor([0, 1]), torch.tensor([2]), backend=backend)
