"""The operator's own tests (tests/attention) with the CUDA kernels in the emulator, through their host launchers, on
sm_80 and sm_90, in three schedules each. Problems that the backend says it cannot serve are skipped with its reason.
Index tensors and plans are checked as in debug mode, since many of these tests want an error.

The default tier runs the matrix in one schedule, the long tier everything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn.backends.base import Backend
from chunkattn.backends.cuda.select import NARROW_VALUES
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
    """Cases that some variant may serve."""
    return [case for case in cases if case.dtype != torch.float32 and not unlisted(case)]


def unlisted(case: AttentionCase) -> bool:
    """fp16 beside an 8-bit cache, but for e4m3 at up to 128 columns; narrow values beside wide keys."""
    widest = max(case.head_dim, case.value_dim)
    quantised = case.cache_dtype != case.dtype
    if case.dtype == torch.float16 and quantised and (widest > 128 or case.cache_dtype != torch.float8_e4m3fn):
        return True
    return case.value_dim <= NARROW_VALUES < case.head_dim


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


def tiered(cases: list[AttentionCase]) -> list[Any]:
    """For both tiers. The default one leaves out three quarters of the cases with wide heads or widened caches."""

    def marks(index: int, case: AttentionCase) -> Any:
        plain = case.cache_dtype == case.dtype
        small = max(case.head_dim, case.value_dim) <= 64 and case.cache_dtype == torch.float8_e4m3fn
        return () if plain or small or index % 4 == 0 else pytest.mark.full

    return [pytest.param(case, id=str(case), marks=marks(index, case)) for index, case in enumerate(cases)]


@pytest.mark.parametrize("case", tiered(listed(FAST)))
def test_matrix(case, attend):
    check(case, attend)
