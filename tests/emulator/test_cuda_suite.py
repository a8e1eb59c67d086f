"""The operator's own tests (tests/attention) with the CUDA kernels in the emulator, through their host launchers, on
sm_80 and sm_90, in three schedules each. Problems that the backend says it cannot serve are skipped with its reason.
Index tensors and plans are checked as in debug mode, since many of these tests want an error.

The default tier runs the matrix in one schedule, the long tier everything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import chunkattn
from chunkattn.backends.base import Backend
from chunkattn.planning import choose
from chunkattn.testing import AttentionCase, laws

from . import cuda_backend

cuda_backend.skip_unless_available(cutlass=True)

sys.path.append(str(Path(__file__).parents[1] / "attention"))

from attention_matrix import matrix  # noqa: E402
from test_attention_laws import *  # noqa: E402, F403
from test_attention_matrix import FAST, FULL_SEEDS, check  # noqa: E402
from test_attention_matrix import test_matrix_full as test_matrix_full  # noqa: E402
from test_option_effects import *  # noqa: E402, F403
from test_regressions_limits import *  # noqa: E402, F403
from test_regressions_masks import *  # noqa: E402, F403
from test_regressions_quantized import *  # noqa: E402, F403
from test_regressions_shapes import *  # noqa: E402, F403
from test_regressions_splits import *  # noqa: E402, F403

from .invariance import *  # noqa: E402, F403

RUNS = [(arch, seed) for arch in (80, 90) for seed in (0, 1, 2)]


def listed(cases: list[AttentionCase]) -> list[AttentionCase]:
    """Cases that some variant may serve; most of the matrix has a cache or head dims that none does."""
    return [
        case
        for case in cases
        if case.dtype != torch.float32
        and max(case.head_dim, case.value_dim) <= (128 if case.cache_dtype == case.dtype else 64)
        and case.cache_dtype in (case.dtype, torch.float8_e4m3fn)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    part = metafunc.function is test_matrix
    runs = [
        pytest.param(run, id=f"sm_{run[0]}-seed{run[1]}", marks=() if part and not run[1] else pytest.mark.full)
        for run in RUNS
    ]
    metafunc.parametrize("emulated_gpu", runs, indirect=True)
    if "full_case" in metafunc.fixturenames:
        wanted = "full" in (metafunc.config.option.markexpr or "")
        cases = [case for seed in FULL_SEEDS for case in listed(matrix(seed))] if wanted else []
        metafunc.parametrize("full_case", cases, ids=str)


@pytest.fixture(autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    chosen = choose.backend

    def backend_or_skip(spec: chunkattn.AttentionSpec, name: str | None = None) -> Backend:
        try:
            return chosen(spec, name)
        except chunkattn.UnsupportedError as error:
            pytest.skip(str(error))

    for _ in cuda_backend.open_session(request.param, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(choose, "backend", backend_or_skip)
            yield


@pytest.fixture
def backend() -> str:
    return "cuda"


@pytest.fixture
def attend(backend: str) -> laws.AttendInto:
    return laws.operator(backend)


@pytest.mark.parametrize("case", listed(FAST), ids=str)
def test_matrix(case, attend):
    check(case, attend)
