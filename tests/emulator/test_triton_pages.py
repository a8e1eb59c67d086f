"""copy_pages, gather_pages and scatter_pages by Triton: the operators' own tests, more dims, and their traffic."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from ops.test_pages import (  # noqa: F401
    pool,
    test_copy_pages,
    test_gather_into_a_strided_block,
    test_gather_then_scatter_moves_pages,
    test_no_pages,
)

from .triton_backend import backend  # noqa: F401
