"""Figures of a compiled Triton kernel for any architecture, without a GPU: registers, spills, shared memory, loops.

They are what ptxas makes of the kernel; nothing here says how fast it is.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from chunkattn.args import AttentionArgs
from chunkattn.backends.device import Gpu
from chunkattn.backends.triton import launch

from . import triton_driver
from .sass_blocks import Blocks, count
from .session import Session

_MATRIX = re.compile(r"\b(HMMA|HGMMA|UTCHMMA|IMMA|QGMMA)\b")
_SPILLS = re.compile(r"\b(LDL|STL)\b")
_COPIES = re.compile(r"\b(LDGSTS|UTMALDG)\b")


@dataclass(frozen=True)
class Loop:
    """An innermost loop with matrix instructions, and how many others of a kind it holds.

    Attributes:
        instructions, matrix: all of them, and those of the tensor cores.
        spills: store registers to local memory or fill them again.
        copies: bring a later tile to shared memory; only the loops that run long have them.
    """

    instructions: int
    matrix: int
    spills: int
    copies: int


@dataclass(frozen=True)
class Figures:
    """What became of a kernel.

    Attributes:
        registers: of a thread.
        spill_bytes: stored to and loaded from local memory, anywhere in the kernel.
        shared_bytes: of a thread block.
        loops: the innermost loops with matrix instructions.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    loops: tuple[Loop, ...]


def attention_args(
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = 128,
    head_dim_v: int | None = None,
    num_q_heads: int = 32,
    num_kv_heads: int = 8,
    page_size: int = 16,
    kv_dtype: torch.dtype | None = None,
    scale: str = "none",
    invariant: bool = False,
    window_left: int = -1,
) -> AttentionArgs:
    """A call with these facts; its tensors say nothing else."""
    value_dim = head_dim_v or head_dim
    kv_dtype = kv_dtype or dtype
    scales = {"none": None, "tensor": torch.ones(()), "head": torch.ones(num_kv_heads),
              "token": torch.ones(4, page_size, num_kv_heads)}[scale]  # fmt: skip
    return AttentionArgs(
        torch.zeros(64, num_q_heads, head_dim, dtype=dtype),
        torch.zeros(4, page_size, num_kv_heads, head_dim).to(kv_dtype),
        torch.zeros(4, page_size, num_kv_heads, value_dim).to(kv_dtype),
        torch.zeros(4, 16, dtype=torch.int32),
        torch.zeros(5, dtype=torch.int32),
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(64, num_q_heads, value_dim, dtype=dtype),
        torch.zeros(64, num_q_heads),
        *(None, None, None, scales, scales, None, None),
        head_dim**-0.5,
        True,
        window_left,
        -1,
        0.0,
        invariant,
        0,
        "triton",
    )


def compile_attention(args: AttentionArgs, arch: int) -> Figures:
    """Compiles the attention kernel of a call for an architecture and takes its figures."""
    gpu = Gpu.of_arch(arch, 132)
    rows = 64
    workspace = torch.zeros(rows * (args.v_cache.shape[3] + 2))
    with triton_driver.installed(Session(arch)):
        one = launch.launches(args, torch.zeros(200, dtype=torch.int64), workspace, rows, gpu)[0]
        kernel = one.kernel.warmup(*one.arguments, grid=one.grid, **one.options)
    return figures(kernel, arch)


def figures(kernel: Any, arch: int) -> Figures:
    """Of a kernel that Triton compiled."""
    with TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(kernel.asm["ptx"])
        target = f"sm_{arch}{'a' if arch >= 90 else ''}"
        command = [_tool("ptxas-blackwell" if arch >= 100 else "ptxas"), "-v", f"--gpu-name={target}", str(source)]
        if not kernel.metadata.enable_fp_fusion:  # as Triton calls it
            command.append("--fmad=false")
        done = subprocess.run([*command, "-o", str(binary)], capture_output=True, text=True, check=True)
        sass = subprocess.run([_tool("nvdisasm"), "-c", str(binary)], capture_output=True, text=True, check=True)
    registers = int(re.findall(r"Used (\d+) registers", done.stderr)[0])
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr))
    return Figures(registers, spilled, kernel.metadata.shared, matrix_loops(sass.stdout))


def _tool(name: str) -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def matrix_loops(sass: str) -> tuple[Loop, ...]:
    """The innermost loops of a disassembly that hold matrix instructions, in order."""
    blocks = Blocks(sass)
    return tuple(
        Loop(len(text), count(_MATRIX, text), count(_SPILLS, text), count(_COPIES, text))
        for text in map(blocks.text, blocks.innermost(_MATRIX).values())
    )
