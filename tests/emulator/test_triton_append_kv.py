"""append_kv by Triton: the operator's own tests, on sm_80 and sm_90."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import triton_backend
from .session import Session

triton_backend.skip_unless_available()

from test_append_kv import *  # noqa: E402, F403


@pytest.fixture(params=triton_backend.RUNS, ids=triton_backend.run_id, autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    yield from triton_backend.open_session(request.param, monkeypatch)


@pytest.fixture
def backend() -> str:
    return "triton"
