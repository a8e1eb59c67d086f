"""What the GPU backends do about page ids outside a pool where nothing is checked, for the tests of either."""

from __future__ import annotations

import pytest
import torch

import chunkattn

__all__ = ["test_without_checks_moves_of_pages_outside_the_pool_are_skipped"]


@pytest.mark.parametrize("page", [-1, 12, 2**31 - 1])
def test_without_checks_moves_of_pages_outside_the_pool_are_skipped(page, backend, monkeypatch):
    for module in ("cuda.backend", "triton.pages"):
        monkeypatch.setattr(f"chunkattn.backends.{module}.SETTINGS", chunkattn.env.Settings())
    pool = torch.randn(12, 2, 3, 8)
    before, ids = pool.clone(), torch.tensor([3, page, 5])
    out = torch.zeros(3, 2, 3, 8)
    chunkattn.gather_pages(pool, ids, out=out, backend=backend)
    assert torch.equal(out, torch.stack([before[3], torch.zeros(2, 3, 8), before[5]]))
    chunkattn.scatter_pages(-out, pool, ids, backend=backend)
    chunkattn.copy_pages(pool, torch.tensor([page, 3]), torch.tensor([7, 8]), backend=backend)
    expected = before.index_copy(0, torch.tensor([3, 5, 8]), -before[[3, 5, 3]])
    assert torch.equal(pool, expected)
