"""The operator's own tests (tests/attention) with the Triton kernels in the emulator: every one of them, on sm_80 and
sm_90, in three schedules each. Index tensors and plans are checked as in debug mode, since many of these tests want an
error.

A kernel is compiled for each set of options and head dims, so this is the long tier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkattn.testing import laws

from . import triton_backend
from .triton_backend import SCHEDULED_RUNS, run_id

triton_backend.skip_unless_available()
sys.path.append(str(Path(__file__).parents[1] / "attention"))

from test_attention_laws import *  # noqa: E402, F403
from test_attention_matrix import test_matrix as test_matrix  # noqa: E402
from test_option_effects import *  # noqa: E402, F403
from test_regressions_limits import *  # noqa: E402, F403
from test_regressions_masks import *  # noqa: E402, F403
from test_regressions_quantized import *  # noqa: E402, F403
from test_regressions_shapes import *  # noqa: E402, F403
from test_regressions_splits import *  # noqa: E402, F403

from .invariance import *  # noqa: E402, F403

pytestmark = pytest.mark.full


@pytest.fixture(params=SCHEDULED_RUNS, ids=run_id, autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for _ in triton_backend.open_session(request.param, monkeypatch):
        yield


@pytest.fixture
def backend() -> str:
    return "triton"


@pytest.fixture
def attend(backend: str) -> laws.AttendInto:
    return laws.operator(backend)
