"""Figures of a compiled Triton kernel for any architecture, without a GPU: registers, spills, shared memory, loops.

They are what ptxas makes of the kernel; nothing here says how fast it is.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from chunkattn.args import AttentionArgs
from chunkattn.backends.device import Gpu
from chunkattn.backends.triton import launch

from . import triton_driver
from .session import Session

_LEAVES = re.compile(r"\b(BRA|BRX|EXIT|RET|JMP)\b")
_MATRIX = re.compile(r"\b(HMMA|HGMMA|UTCHMMA|IMMA|QGMMA)\b")


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


class _Blocks:
    """The basic blocks of a disassembly, and the loops that they form."""

    def __init__(self, sass: str):
        labels: dict[str, int] = {}
        self.code: list[str] = []
        for line in sass.splitlines():
            if label := re.match(r"^(\.L_\w+):", line.strip()):
                labels[label.group(1)] = len(self.code)
            elif instruction := re.match(r"^\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
                self.code.append(instruction.group(1))
        leaves = {place + 1 for place, text in enumerate(self.code) if _LEAVES.search(text)}
        starts = sorted(place for place in {0, *labels.values(), *leaves} if place < len(self.code))
        self.spans = list(zip(starts, [*starts[1:], len(self.code)]))
        index = {begin: block for block, (begin, _) in enumerate(self.spans)}
        self.before: list[list[int]] = [[] for _ in self.spans]
        self.after: list[list[int]] = []
        for block, (_, end) in enumerate(self.spans):
            last = self.code[end - 1]
            jump = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", last)
            goes_on = not _LEAVES.search(last) or last.startswith("@") or re.search(r"\bBRA[.\w]*\s+!?U?P\d", last)
            targets = [index[labels[jump.group(1)]]] if jump else []
            if goes_on and block + 1 < len(self.spans):
                targets.append(block + 1)
            self.after.append(targets)
            for target in targets:
                self.before[target].append(block)

    def text(self, blocks: Iterable[int]) -> list[str]:
        return [text for block in sorted(blocks) for text in self.code[slice(*self.spans[block])]]

    def loops(self) -> dict[int, set[int]]:
        """Blocks of each natural loop, by the block that it begins with."""
        loops: dict[int, set[int]] = {}
        for head, dominated in enumerate(self._dominated()):
            ends = [block for block in self.before[head] if block in dominated]
            if ends:
                body, open_blocks = {head}, ends
                while open_blocks:
                    block = open_blocks.pop()
                    if block not in body:
                        body.add(block)
                        open_blocks += self.before[block]
                loops[head] = body
        return loops

    def _dominated(self) -> list[set[int]]:
        """For each block those that cannot be reached without it."""
        roots = [block for block, before in enumerate(self.before) if block == 0 or not before]  # called functions, too
        everything = self._reached(roots, None)
        return [everything - self._reached(roots, block) for block in range(len(self.spans))]

    def _reached(self, roots: list[int], avoided: int | None) -> set[int]:
        found: set[int] = set()
        open_blocks = list(roots)
        while open_blocks:
            block = open_blocks.pop()
            if block not in found and block != avoided:
                found.add(block)
                open_blocks += self.after[block]
        return found


def matrix_loops(sass: str) -> tuple[Loop, ...]:
    """The innermost loops of a disassembly that hold matrix instructions, in order."""
    blocks = _Blocks(sass)
    loops = {h: body for h, body in blocks.loops().items() if any(map(_MATRIX.search, blocks.text(body)))}
    innermost = [body for h, body in sorted(loops.items()) if not any(other < body for other in loops.values())]
    return tuple(
        Loop(
            len(text),
            sum(bool(_MATRIX.search(line)) for line in text),
            sum(bool(re.search(r"\b(LDL|STL)\b", line)) for line in text),
            sum(bool(re.search(r"\b(LDGSTS|UTMALDG)\b", line)) for line in text),
        )
        for text in map(blocks.text, innermost)
    )
