"""What a newcomer does: write a small kernel, mark a test, see it run, see a planted race with file and line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import cuda_runtime, native, triton_driver
from .ptx_cache import nvcc_path

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))

CUDA_KERNEL = """\
__global__ void reverse(const float* in, float* out) {
  __shared__ float tile[256];
  tile[threadIdx.x] = in[threadIdx.x];
  BARRIER
  out[threadIdx.x] = tile[255 - threadIdx.x];
}
extern "C" int run_reverse(const float* in, float* out) {
  reverse<<<1, 256>>>(in, out);
  return cudaGetLastError();
}
"""

CUDA_TEST = """\
import ctypes
from pathlib import Path

import pytest
import torch
from emulator.ptx_cache import compile_library


@pytest.mark.emulated(arch=90, seeds=2)
def test_reverse():
    library = ctypes.CDLL(str(compile_library(Path(__file__).parent / "reverse.cu")))
    x, out = torch.randn(256), torch.empty(256)
    library.run_reverse(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()))
    assert torch.equal(out, x.flip(0))
"""

TRITON_TEST = """\
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, offsets < n) * 2, offsets < n)


@pytest.mark.emulated(arch=80, seeds=2)
def test_double():
    x = torch.randn(200)
    out = torch.empty(200)
    double[(2,)](x, out, LENGTH, BLOCK=128)
    assert torch.equal(out, x * 2)
"""


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """pytest in a folder of its own, with nothing but the plugin, and no summary that would say a finding again."""
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rN", "-p", "emulator.plugin"]
    command += ["--rootdir", str(folder), *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def write_cuda(folder: Path, barrier: str) -> None:
    (folder / "reverse.cu").write_text(CUDA_KERNEL.replace("BARRIER", barrier))
    (folder / "test_reverse.py").write_text(CUDA_TEST)


needs_cuda = pytest.mark.skipif(
    nvcc_path() is None or not cuda_runtime.available(), reason="nvcc or the CUDA headers are not installed"
)
needs_triton = pytest.mark.skipif(not triton_driver.available(), reason="triton is not installed")


@needs_cuda
def test_cuda_kernel_runs(tmp_path: Path) -> None:
    write_cuda(tmp_path, "__syncthreads();")
    status, output = run_pytest(tmp_path)
    assert status == 0, output
    assert "2 passed" in output


@needs_cuda
def test_planted_race_is_reported_with_file_line_and_seed(tmp_path: Path) -> None:
    write_cuda(tmp_path, "")
    status, output = run_pytest(tmp_path)
    assert status == 1, output
    assert "[shared-race]" in output
    assert "reverse.cu:5" in output  # the read
    assert "reverse.cu:3" in output  # the write it is not ordered after
    assert "--emulator-seed 0" in output


@needs_triton
def test_triton_kernel_runs_and_counts(tmp_path: Path) -> None:
    (tmp_path / "test_double.py").write_text(TRITON_TEST.replace("LENGTH", "200"))
    status, output = run_pytest(tmp_path, "--emulator-counters", str(tmp_path / "counters"))
    assert status == 0, output
    assert "2 passed" in output
    assert "warp_instructions" in (tmp_path / "counters" / "test_double_seed0_.json").read_text()


@needs_triton
def test_out_of_bounds_is_reported_with_the_seed(tmp_path: Path) -> None:
    (tmp_path / "test_double.py").write_text(TRITON_TEST.replace("LENGTH", "256"))
    status, output = run_pytest(tmp_path, "--emulator-seed", "7")
    assert status == 1, output
    assert "past the end of 'x" in output
    assert "test_double.py:10" in output
    assert "--emulator-seed 7" in output
    assert output.count("[bounds]") == 1
    assert "1 failed in" in output


@needs_triton
def test_a_finding_that_a_caller_swallows_is_reported(tmp_path: Path) -> None:
    swallowing = TRITON_TEST.replace("    double[", "    with contextlib.suppress(AssertionError):\n        double[")
    swallowing = swallowing.replace("    assert torch.equal(out, x * 2)\n", "").replace("LENGTH", "256")
    (tmp_path / "test_double.py").write_text("import contextlib\n" + swallowing)
    status, output = run_pytest(tmp_path, "--emulator-seed", "7")
    assert status == 1, output
    assert output.count("[bounds]") == 1
    assert "1 passed, 1 error in" in output
