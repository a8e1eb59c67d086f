"""Kernels nobody here wrote: CuTe's tutorials and CUTLASS example 88, with their own host code.

Compiling takes a minute or more a kernel, hence the long tier; the results are cached by content.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from . import cuda_runtime
from .launch import Options
from .ptx_cache import compile_library, cutlass_directory, cutlass_includes, nvcc_path
from .report import Finding
from .session import emulated

if nvcc_path() is None:
    pytest.skip("nvcc is not installed", allow_module_level=True)
if cutlass_directory() is None:
    pytest.skip("nvidia-cutlass is not installed", allow_module_level=True)
if not cuda_runtime.available():
    pytest.skip("the CUDA headers are not installed", allow_module_level=True)

pytestmark = pytest.mark.full
KERNELS = Path(__file__).parent / "kernels"
POINTER, INTEGER = ctypes.c_void_p, ctypes.c_int


@dataclass(frozen=True)
class Tutorial:
    """`known`: what the checks find in the tutorial as it is, and why that is right."""

    source: str
    arch: int
    layouts: tuple[str, ...]  # transposition of A and B, as in BLAS
    known: frozenset[str]
    reason: str

    def __str__(self) -> str:
        return Path(self.source).stem


TUTORIALS = [
    Tutorial("sgemm_sm80.cu", 80, ("TN",), frozenset({"pending-async"}), "the last prefetches are never waited for"),
    Tutorial(
        "hopper/wgmma_tma_sm90.cu", 90, ("NT", "TN"), frozenset({"pending-async"}), "it prefetches beyond the last tile"
    ),
    Tutorial(
        "hopper/wgmma_sm90.cu",
        90,
        ("NT", "TN"),
        frozenset({"shared-race", "pending-async"}),
        "its main loop waits for the own cp.async of each thread and then reads what all threads copied, with no "
        "__syncthreads() in between",
    ),
]


def tutorial_gemm(tutorial: Tutorial, layout: str, options: Options) -> tuple[float, list[Finding]]:
    """(largest error of C = A * B, findings)."""
    tutorials = cutlass_directory() / "examples" / "cute" / "tutorial"
    includes = [*cutlass_includes(), cutlass_directory() / "examples" / "common"]
    library = compile_library(
        KERNELS / "cute_gemm.cu",
        f"{tutorial.arch}a" if tutorial.arch == 90 else str(tutorial.arch),
        (f'-DTUTORIAL="{tutorials / tutorial.source}"',),
        includes,
    )
    m, n, k = 256, 128, 256
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-1, 2, (m, k), generator=generator).half()
    b = torch.randint(-1, 2, (n, k), generator=generator).half()
    stored_a = a.T.contiguous() if layout[0] == "N" else a
    stored_b = b.T.contiguous() if layout[1] == "T" else b
    c = torch.full((n, m), math.nan, dtype=torch.half)
    with emulated(tutorial.arch, options, strict=False) as session:
        function = ctypes.CDLL(str(library)).gemm_half
        function.argtypes = [ctypes.c_char, ctypes.c_char, *[INTEGER] * 3, *[POINTER, INTEGER] * 3]
        function(
            layout[0].encode(),
            layout[1].encode(),
            m,
            n,
            k,
            stored_a.data_ptr(),
            stored_a.shape[1],
            stored_b.data_ptr(),
            stored_b.shape[1],
            c.data_ptr(),
            m,
        )
    error = (c.T.float() - a.float() @ b.float().T).abs().max().item()
    return error, [finding for launch in session.launches for finding in launch.all_findings]


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=str)
def test_tutorial(tutorial: Tutorial) -> None:
    for layout in tutorial.layouts:
        for seed in range(3):
            error, findings = tutorial_gemm(tutorial, layout, Options.for_seed(seed))
            assert {finding.kind for finding in findings} <= tutorial.known, "\n".join(map(str, findings))
            if "shared-race" not in tutorial.known:
                assert error == 0


def test_missing_barrier_of_the_wgmma_tutorial_is_found() -> None:
    """The numbers are right, because a wgmma waits for its four warps; PTX promises no memory ordering for that."""
    tutorial = TUTORIALS[-1]
    error, findings = tutorial_gemm(tutorial, "TN", Options())
    assert error == 0
    assert any(finding.kind == "shared-race" and "wgmma_sm90.cu:" in finding.source for finding in findings)


@dataclass(frozen=True)
class Attention:
    """One kernel of example 88."""

    schedule: str
    tile_m: int
    tile_n: int
    head_dim: int
    fusion: str
    shape: tuple[int, int, int, int]  # batch, heads, query tokens, KV tokens

    def __str__(self) -> str:
        return f"{self.schedule} {self.tile_m}x{self.tile_n}x{self.head_dim} {self.fusion}"


ATTENTION = [
    Attention("KernelTma", 64, 128, 64, "DefaultFusion", (1, 2, 64, 256)),
    Attention("KernelTmaWarpSpecializedPingpong", 128, 64, 64, "ResidualFusion", (1, 2, 200, 150)),
    Attention("KernelTmaWarpSpecializedCooperative", 128, 128, 128, "CausalFusion", (1, 2, 256, 256)),
]


@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_example_88(case: Attention) -> None:
    includes = [*cutlass_includes(), cutlass_directory() / "examples" / "88_hopper_fmha"]
    flags = ["--use_fast_math", f"-DSCHEDULE={case.schedule}", f"-DTILE_M={case.tile_m}", f"-DTILE_N={case.tile_n}"]
    flags += [f"-DHEAD_DIM={case.head_dim}", f"-DFUSION={case.fusion}"]
    library = compile_library(KERNELS / "cutlass_fmha.cu", "90a", flags, includes)
    batch, heads, q_len, kv_len = case.shape
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, tokens, case.head_dim, generator=generator).half()
        for tokens in (q_len, kv_len, kv_len)
    )
    scores = q.float() @ k.float().transpose(-1, -2) / math.sqrt(case.head_dim)
    if case.fusion == "CausalFusion":
        scores = scores.masked_fill(torch.arange(kv_len)[None] > torch.arange(q_len)[:, None], -math.inf)
    expected = torch.softmax(scores, -1) @ v.float()
    for seed in range(3):
        out, lse = torch.full_like(q, math.nan), torch.full((batch, heads, q_len), math.nan)
        with emulated(90, Options.for_seed(seed)):
            function = ctypes.CDLL(str(library)).fmha
            function.argtypes = [*[POINTER] * 5, *[INTEGER] * 4]
            tensors = (q, k, v, out, lse)
            assert function(*(t.data_ptr() for t in tensors), batch, heads, q_len, kv_len) == 0
        assert (out.float() - expected).abs().max() <= 2e-3
        assert (lse - torch.logsumexp(scores, -1)).abs().max() <= 1e-4
