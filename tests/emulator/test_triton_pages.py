"""copy_pages, gather_pages and scatter_pages by Triton: the operators' own tests, and pools of more dims."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import chunkattn

from . import triton_backend
from .session import Session

triton_backend.skip_unless_available()

from test_pages import *  # noqa: E402, F403

from .pages_outside import *  # noqa: E402, F403


@pytest.fixture(params=triton_backend.RUNS, ids=triton_backend.run_id, autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    yield from triton_backend.open_session(request.param, monkeypatch)


@pytest.fixture
def backend() -> str:
    return "triton"


@pytest.mark.parametrize("shape", [(6, 3, 2, 4, 3, 5), (6, 7), (6, 1, 1), (6, 2, 3000)])
def test_pools_of_any_dims(shape, backend):
    """Transposed inside, so that nothing can be joined, on one side only."""
    pool = torch.randn(shape)
    pages = torch.tensor([4, 1], dtype=torch.int32)
    expected = pool[pages.long()]
    order = (0, *range(len(shape) - 1, 0, -1))
    twisted = pool.permute(order).contiguous().permute([order.index(dim) for dim in range(len(shape))])
    assert torch.equal(chunkattn.gather_pages(pool, pages, backend=backend), expected)
    assert torch.equal(chunkattn.gather_pages(twisted, pages, backend=backend), expected)
    chunkattn.scatter_pages(expected, twisted, torch.tensor([0, 5]), backend=backend)
    assert torch.equal(twisted[[0, 5]], expected)
    assert torch.equal(twisted[1:5], pool[1:5])
