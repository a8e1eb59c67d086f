"""Kernels launched by their own CUDA host code, as they are or with a damaged text in their place."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import torch

from .launch import Options, PtxModule
from .ptx_cache import compile_library
from .report import LaunchResult
from .session import Session, emulated


class HostCase:
    """One launch, and whether its result is right.

    Attributes:
        known: kinds of findings that are right about the kernel as it is.
    """

    arch = 90
    known: frozenset[str] = frozenset()

    def call(self) -> None:
        raise NotImplementedError

    def error(self) -> float:
        """How far the result is off, in units of what is allowed."""
        raise NotImplementedError

    def launch(self, options: Options, substitute: PtxModule | None = None) -> Session:
        with emulated(self.arch, options, strict=False) as session:
            session.substitute = substitute
            self.call()
        return session

    def kernel(self) -> tuple[str, str]:
        """(name, PTX text) of what the host code launches."""
        session = self.launch(Options())
        assert session.last_module is not None
        return session.launches[-1].kernel, session.last_module.ptx

    def run(self, module: PtxModule, options: Options) -> set[str]:
        """Kinds found that are not known; "wrong numbers" if that is all that shows."""
        launches: list[LaunchResult] = self.launch(options, module).launches
        found = {kind for launch in launches for kind in launch.kinds} - self.known
        return found or (set() if self.error() <= 1 else {"wrong numbers"})


class ScaleCase(HostCase):
    """kernels/tma_scale.cu with its planted fault number `fault`; 0: none."""

    def __init__(self, fault: int = 0):
        self.source = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
        self.out = torch.empty(40, 100)
        path = compile_library(Path(__file__).parent / "kernels" / "tma_scale.cu", flags=(f"-DFAULT={fault}",))
        self.function = ctypes.CDLL(str(path)).scale
        self.function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_float]
        self.status = 0

    def call(self) -> None:
        self.out.fill_(math.nan)
        self.status = self.function(self.source.data_ptr(), self.out.data_ptr(), *self.out.shape, 2.5)

    def error(self) -> float:
        return 0.0 if self.status == 0 and torch.equal(self.out, self.source * 2.5) else math.inf
