"""Kernels nobody here wrote, with their own host code: CuTe's tutorials and CUTLASS example 88, run and judged."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from .host_cases import HostCase
from .ptx_cache import compile_library, cutlass_directory, cutlass_includes

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

    def library(self) -> ctypes.CDLL:
        tutorials = cutlass_directory() / "examples" / "cute" / "tutorial"
        return ctypes.CDLL(
            str(
                compile_library(
                    KERNELS / "cute_gemm.cu",
                    f"{self.arch}a" if self.arch == 90 else str(self.arch),
                    (f'-DTUTORIAL="{tutorials / self.source}"',),
                    [*cutlass_includes(), cutlass_directory() / "examples" / "common"],
                )
            )
        )


TUTORIALS = [
    Tutorial("sgemm_sm80.cu", 80, ("TN",), frozenset({"pending-async"}), "the last prefetches are never waited for"),
    Tutorial(
        "hopper/wgmma_tma_sm90.cu", 90, ("NT", "TN"), frozenset({"pending-async"}), "it prefetches beyond the last tile"
    ),
    Tutorial(
        "hopper/wgmma_sm90.cu",
        90,
        ("NT", "TN"),
        frozenset({"shared-race", "pending-async", "proxy"}),
        "its main loop waits for the own cp.async of each thread and then reads what all threads copied, with no "
        "__syncthreads() in between, and no proxy fence",
    ),
]


class TutorialGemm(HostCase):
    """C = A * B in half precision; exact, since the inputs are small integers."""

    def __init__(self, tutorial: Tutorial, layout: str, shape: tuple[int, int, int] = (256, 128, 256)):
        self.tutorial, self.layout, self.shape = tutorial, layout, shape
        self.arch, self.known = tutorial.arch, tutorial.known
        m, n, k = shape
        generator = torch.Generator().manual_seed(0)
        a = torch.randint(-1, 2, (m, k), generator=generator).half()
        b = torch.randint(-1, 2, (n, k), generator=generator).half()
        self.a = a.T.contiguous() if layout[0] == "N" else a
        self.b = b.T.contiguous() if layout[1] == "T" else b
        self.c = torch.full((n, m), math.nan, dtype=torch.half)
        self.expected = a.float() @ b.float().T
        self.function = tutorial.library().gemm_half
        self.function.argtypes = [ctypes.c_char, ctypes.c_char, *[INTEGER] * 3, *[POINTER, INTEGER] * 3]

    def call(self) -> None:
        self.c.fill_(math.nan)
        letters = (letter.encode() for letter in self.layout)
        matrices = ((x.data_ptr(), x.shape[1]) for x in (self.a, self.b, self.c))
        self.function(*letters, *self.shape, *(item for matrix in matrices for item in matrix))

    def error(self) -> float:
        difference = (self.c.T.float() - self.expected).abs().max().item()
        return 0.0 if difference == 0 else math.inf


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


class AttentionCase(HostCase):
    """One kernel of example 88 on random inputs."""

    def __init__(self, case: Attention):
        self.case = case
        includes = [*cutlass_includes(), cutlass_directory() / "examples" / "88_hopper_fmha"]
        flags = ["--use_fast_math", f"-DSCHEDULE={case.schedule}", f"-DTILE_M={case.tile_m}", f"-DTILE_N={case.tile_n}"]
        flags += [f"-DHEAD_DIM={case.head_dim}", f"-DFUSION={case.fusion}"]
        self.function = ctypes.CDLL(str(compile_library(KERNELS / "cutlass_fmha.cu", "90a", flags, includes))).fmha
        self.function.argtypes = [*[POINTER] * 5, *[INTEGER] * 4]
        batch, heads, q_len, kv_len = case.shape
        generator = torch.Generator().manual_seed(0)
        self.q, self.k, self.v = (
            torch.randn(batch, heads, tokens, case.head_dim, generator=generator).half()
            for tokens in (q_len, kv_len, kv_len)
        )
        scores = self.q.float() @ self.k.float().transpose(-1, -2) / math.sqrt(case.head_dim)
        if case.fusion == "CausalFusion":
            scores = scores.masked_fill(torch.arange(kv_len)[None] > torch.arange(q_len)[:, None], -math.inf)
        self.expected = torch.softmax(scores, -1) @ self.v.float()
        self.expected_lse = torch.logsumexp(scores, -1)
        self.out, self.lse = torch.empty_like(self.q), torch.empty(batch, heads, q_len)
        self.status = 0

    def call(self) -> None:
        self.out.fill_(math.nan)
        self.lse.fill_(math.nan)
        tensors = (self.q, self.k, self.v, self.out, self.lse)
        self.status = self.function(*(t.data_ptr() for t in tensors), *self.case.shape)

    def error(self) -> float:
        out = (self.out.float() - self.expected).abs().max().item() / 2e-3
        lse = (self.lse - self.expected_lse).abs().max().item() / 1e-4
        return math.inf if self.status or math.isnan(out) or math.isnan(lse) else max(out, lse)
