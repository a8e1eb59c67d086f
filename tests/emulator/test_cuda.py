"""CUDA libraries through their own host code and the stand-in runtime."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from . import cuda_runtime, native
from .host_cases import ScaleCase
from .launch import Options
from .ptx_cache import compile_library, nvcc_path
from .session import emulated

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if nvcc_path() is None:
    pytest.skip("nvcc is not installed", allow_module_level=True)
if not cuda_runtime.available():
    pytest.skip("the CUDA headers are not installed", allow_module_level=True)

SOURCE = Path(__file__).parent / "kernels" / "tma_scale.cu"


@pytest.mark.parametrize("seed", range(4))
def test_right_kernel_runs_clean(seed: int) -> None:
    case = ScaleCase()
    for launch in case.launch(Options.for_seed(seed)).launches:
        launch.require_clean()
    assert case.error() == 0


@pytest.mark.parametrize(("fault", "kind"), [(1, "shared-race"), (2, "proxy"), (3, "barrier"), (4, "barrier")], ids=str)
def test_planted_fault_is_named(fault: int, kind: str) -> None:
    found = [f for launch in ScaleCase(fault).launch(Options()).launches for f in launch.all_findings]
    report = "\n".join(map(str, found))
    assert kind in {finding.kind for finding in found}, report
    assert "tma_scale.cu:" in report


def test_host_errors_show(tmp_path: Path) -> None:
    """The encoder refuses what the hardware refuses: rows of 100 * 4 bytes are fine, of 99 * 4 are not."""
    path = compile_library(SOURCE, flags=("-DFAULT=0",))
    source, out = torch.randn(8, 99), torch.zeros(8, 99)
    with emulated(90):
        function = ctypes.CDLL(str(path)).scale
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_float]
        assert function(source.data_ptr(), out.data_ptr(), 8, 99, 1.0) == 2
