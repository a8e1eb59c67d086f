"""The operator's own tests (tests/attention) with the Triton kernels in the emulator: every one of them, on sm_80 and
sm_90. Index tensors and plans are checked as in debug mode, since many of these tests want an error.

A kernel is compiled for each set of options and head dims, so this is the long tier.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chunkattn
from chunkattn.testing import laws

from . import native, triton_driver
from .session import emulated

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

sys.path.append(str(Path(__file__).parents[1] / "attention"))

from test_attention_laws import *  # noqa: F403
from test_attention_matrix import test_matrix as test_matrix
from test_option_effects import *  # noqa: F403
from test_regressions_limits import *  # noqa: F403
from test_regressions_masks import *  # noqa: F403
from test_regressions_quantized import *  # noqa: F403
from test_regressions_shapes import *  # noqa: F403
from test_regressions_splits import *  # noqa: F403

from .invariance import *  # noqa: F403

pytestmark = pytest.mark.full


@pytest.fixture(params=[80, 90], ids=["sm_80", "sm_90"], autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    debugging = dataclasses.replace(chunkattn.env.SETTINGS, debug=True)
    monkeypatch.setattr("chunkattn.ops.SETTINGS", debugging)
    monkeypatch.setattr("chunkattn.backends.triton.backend.SETTINGS", debugging)
    with emulated(request.param):
        yield


@pytest.fixture
def backend() -> str:
    return "triton"


@pytest.fixture
def attend(backend: str) -> laws.AttendInto:
    return laws.operator(backend)
