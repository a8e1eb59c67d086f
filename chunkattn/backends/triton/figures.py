"""Compiles the attention kernel for a GPU that is not at hand, and asks ptxas what became of it.

Nothing here says how fast a kernel is; but one that spills in its loop, or wants more shared memory than there is, need
not be measured.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from chunkattn.args import AttentionArgs
from chunkattn.backends.device import Gpu
from chunkattn.backends.triton import launch
from chunkattn.planning.work import plan_words

_PARTIAL_ROWS = 64


@dataclass(frozen=True)
class Figures:
    """What ptxas says.

    Attributes:
        registers: of a thread.
        spill_bytes: that a thread stores to and loads from local memory, anywhere in the kernel.
        shared_bytes: of a thread block.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int


def compile_attention(a: AttentionArgs, device: Gpu) -> Figures:
    """Compiles the kernel of a call, with partial states.

    Args:
        a: the call; its tensors may lie anywhere, they are not read.
        device: the GPU to compile for.

    Raises:
        RuntimeError: Triton or ptxas refuses.
    """
    words = torch.zeros(plan_words(a.seq_lens.shape[0]), dtype=torch.int64)
    workspace = torch.zeros(_PARTIAL_ROWS * (a.v_cache.shape[3] + 2))
    with _driver(device.arch):
        one = launch.launches(a, words, workspace, _PARTIAL_ROWS, device)[0]
        try:
            kernel = one.kernel.warmup(*one.arguments, grid=one.grid, **one.options)
        except Exception as error:  # a compiler may raise anything
            raise RuntimeError(f"Triton refuses: {str(error).strip().splitlines()[:1]}") from error
    return _figures(kernel, device.arch)


def _figures(kernel: Any, arch: int) -> Figures:
    tool = (
        Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / ("ptxas-blackwell" if arch >= 100 else "ptxas")
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(kernel.asm["ptx"])
        target = f"--gpu-name=sm_{arch}{'a' if arch >= 90 else ''}"
        command = [str(tool), "-v", target, str(source), "-o", f"{folder}/kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True)
    registers = re.findall(r"Used (\d+) registers", done.stderr)
    if done.returncode or not registers:
        raise RuntimeError(f"ptxas refuses: {done.stderr.strip().splitlines()[-1:]}")
    spilled = sum(int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr))
    return Figures(int(registers[0]), spilled, int(kernel.metadata.shared))


class _AbsentGpu:
    """As much of a Triton driver as compiling asks for."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextlib.contextmanager
def _driver(arch: int) -> Iterator[None]:
    """Inside it Triton compiles for an architecture, whatever the machine has."""
    driver: Any = triton.runtime.driver
    before = driver._active
    driver.set_active(_AbsentGpu(arch))
    try:
        yield
    finally:
        driver._active = before
