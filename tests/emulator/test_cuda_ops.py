"""The operators' own tests (tests/ops) with the CUDA kernels in the emulator, through their host launchers: sm_80 and
sm_90a, three schedules each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import cuda_backend
from .session import Session

cuda_backend.skip_unless_available()
sys.path.append(str(Path(__file__).parents[1] / "ops"))

from test_append_kv import *  # noqa: E402, F403
from test_merge_states import *  # noqa: E402, F403
from test_pages import *  # noqa: E402, F403

from .pages_outside import *  # noqa: E402, F403

del test_merging_a_shared_prefix_with_the_rest  # noqa: F821 - attention's part is tested with the attention kernels


@pytest.fixture(params=cuda_backend.RUNS, autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    yield from cuda_backend.open_session(request.param, monkeypatch)


@pytest.fixture
def backend() -> str:
    return "cuda"
