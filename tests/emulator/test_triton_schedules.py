"""Tests of append_kv, merge_states and page moves by Triton again, in other schedules of warps and programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import triton_backend
from .session import Session

triton_backend.skip_unless_available()

from test_append_kv import (  # noqa: E402
    test_d14_rows_that_are_not_aligned_to_vector_width as test_d14_rows_that_are_not_aligned_to_vector_width,
)
from test_append_kv import test_dynamic_scales_use_the_whole_range as test_dynamic_scales_use_the_whole_range  # noqa: E402
from test_append_kv import test_rotation_numbers as test_rotation_numbers  # noqa: E402
from test_append_kv import test_rotation_of_keys_and_queries as test_rotation_of_keys_and_queries  # noqa: E402
from test_merge_states import test_d17_any_order_and_layout as test_d17_any_order_and_layout  # noqa: E402
from test_merge_states import test_d17_writing_over_an_input as test_d17_writing_over_an_input  # noqa: E402
from test_pages import pool as pool  # noqa: E402
from test_pages import test_copy_pages as test_copy_pages  # noqa: E402


@pytest.fixture(params=triton_backend.SCHEDULED_RUNS, ids=triton_backend.run_id, autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    yield from triton_backend.open_session(request.param, monkeypatch)


@pytest.fixture
def backend() -> str:
    return "triton"
