"""CUDA libraries through their own host code and the stand-in runtime."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import pytest
import torch

from . import cuda_runtime, native
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


def run_scale(fault: int, options: Options, arch: int = 90) -> tuple[int, torch.Tensor, torch.Tensor, set[str], str]:
    """(status of the host function, output, expected output, kinds found, report)."""
    path = compile_library(SOURCE, flags=(f"-DFAULT={fault}",))
    source, out = torch.randn(40, 100), torch.full((40, 100), math.nan)
    with emulated(arch, options, strict=False) as session:
        function = ctypes.CDLL(str(path)).scale
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_float]
        status = function(source.data_ptr(), out.data_ptr(), 40, 100, 2.5)
    found = [finding for launch in session.launches for finding in launch.all_findings]
    return status, out, source * 2.5, {f.kind for f in found}, "\n".join(map(str, found))


@pytest.mark.parametrize("seed", range(4))
def test_right_kernel_runs_clean(seed: int) -> None:
    status, out, expected, kinds, report = run_scale(0, Options.for_seed(seed))
    assert status == 0, report
    assert not kinds, report
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("fault", "kind"), [(1, "shared-race"), (2, "proxy"), (3, "barrier"), (4, "barrier")], ids=str)
def test_planted_fault_is_named(fault: int, kind: str) -> None:
    *_, kinds, report = run_scale(fault, Options())
    assert kind in kinds, report
    assert "tma_scale.cu:" in report


def test_host_errors_show(tmp_path: Path) -> None:
    """The encoder refuses what the hardware refuses: rows of 100 * 4 bytes are fine, of 99 * 4 are not."""
    path = compile_library(SOURCE, flags=("-DFAULT=0",))
    source, out = torch.randn(8, 99), torch.zeros(8, 99)
    with emulated(90):
        function = ctypes.CDLL(str(path)).scale
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_float]
        assert function(source.data_ptr(), out.data_ptr(), 8, 99, 1.0) == 2
