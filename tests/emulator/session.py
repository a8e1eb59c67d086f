"""`emulated()`: inside it, CUDA launches and Triton kernels of this process run in the emulator."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .launch import Buffer, Options, PtxModule
from .live_tensors import buffers_in_scope, storage_buffer
from .report import KernelError, LaunchResult

SUPPORTED_ARCHITECTURES = (80, 90)


@dataclass
class Session:
    """What happens to launches while `emulated()` is active.

    Attributes:
        arch: compute capability times ten, 80 or 90.
        options: schedule and checks of every launch.
        multiprocessors: what host code is told; few, so that persistent kernels loop.
        strict: whether findings raise KernelError (at the launch, or when the block ends).
        launches: every launch so far.
        told: those of them whose KernelError ended the test: the end of the block raises it no more.
        last_module: what the last launch ran.
        substitute: run instead of what the CUDA host code launches (the same kernel, changed).
    """

    arch: int = 90
    options: Options = field(default_factory=Options)
    multiprocessors: int = 4
    strict: bool = True
    launches: list[LaunchResult] = field(default_factory=list)
    told: list[LaunchResult] = field(default_factory=list)
    pinned: list[Buffer] = field(default_factory=list)
    last_module: PtxModule | None = None
    substitute: PtxModule | None = None

    def track(self, tensor: torch.Tensor, name: str, defined: bool = True, writable: bool = True) -> None:
        """Names a tensor for messages, or says that it starts undefined or is read-only."""
        if not defined or not writable:
            self.pinned.append(Buffer.of(tensor, name, writable, defined))
        else:
            self.pinned.append(storage_buffer(tensor, name))

    def buffers(self, extra: Sequence[Buffer] = ()) -> list[Buffer]:
        """Memory that a launch may touch: what is pinned, what its callers hold, what the launcher knows.

        Where they lie in one another the first one decides on the name and the rights.
        """
        kept = list(self.pinned)
        pinned = {buffer.address for buffer in kept}
        for buffer in (*buffers_in_scope(), *extra):
            end = buffer.address + buffer.size
            known = any(b.address <= buffer.address and end <= b.address + b.size for b in kept)
            if not known and buffer.address not in pinned:
                kept.append(buffer)
        return kept

    def launch(
        self,
        module: PtxModule,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        values: Sequence[Any] | bytes,
        dynamic_shared: int,
        cluster: Sequence[int] = (1, 1, 1),
        extra: Sequence[Buffer] = (),
        options: Options | None = None,
    ) -> LaunchResult:
        """Runs one launch, under `self.options` unless others are given, and keeps its result."""
        self.last_module = module
        result = module.launch(
            kernel,
            grid,
            block,
            values,
            self.buffers(extra),
            dynamic_shared,
            cluster,
            options=options or self.options,
        )
        self.launches.append(result)
        if self.strict:
            result.require_clean()
        return result

    def counters(self) -> dict[str, dict[str, Any]]:
        """Counters of all launches, added up by kernel."""
        total: dict[str, dict[str, Any]] = {}
        for launch in self.launches:
            _add(total.setdefault(launch.kernel, {"launches": 0}), {"launches": 1, **launch.counters})
        return total

    def write_counters(self, path: Path) -> None:
        path.write_text(json.dumps(self.counters(), indent=1, sort_keys=True) + "\n")


def _add(total: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


_active: list[Session] = []


def active_session() -> Session | None:
    """The innermost `emulated()` block that is open, if any."""
    return _active[-1] if _active else None


def note_told(error: BaseException | None) -> None:
    """Notes a test's error, and those it shows as its causes, in the sessions that are still open: fixtures' ones."""
    while error is not None:
        if isinstance(error, KernelError):
            for session in _active:
                session.told.append(error.result)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@contextlib.contextmanager
def _counts_as_gpu(session: Session) -> Iterator[None]:
    """Makes the library take CPU tensors for those of the session's GPU; nothing where it is not installed."""
    if importlib.util.find_spec("chunkattn") is None:
        yield
        return
    from chunkattn.backends import device
    from chunkattn.planning import choose

    choose.backend.cache_clear()  # it remembers which backends can serve a CPU tensor
    try:
        with device.stand_in("cpu", device.Gpu.of_arch(session.arch, session.multiprocessors)):
            yield
    finally:
        choose.backend.cache_clear()


@contextlib.contextmanager
def emulated(
    arch: int = 90, options: Options | None = None, multiprocessors: int = 4, strict: bool = True
) -> Iterator[Session]:
    """Runs every Triton and CUDA launch of the block in the emulator, on CPU tensors.

    Args:
        arch: 80 or 90: what kernels are compiled for and what host code is told.
        options: schedule and checks.
        multiprocessors: what host code is told.
        strict: raise KernelError for anything found; else read `session.launches`.

    CPU tensors count as those of such a GPU for the library's own backends.

    Raises:
        ValueError: another architecture.
        KernelError: a kernel broke a rule.

    Example:
        >>> with emulated(arch=90) as session:
        ...     my_triton_kernel[(4,)](x, y, n, BLOCK=128)
        >>> session.launches[0].counters["warp_instructions"]
    """
    if arch not in SUPPORTED_ARCHITECTURES:
        raise ValueError(f"arch: expected one of {SUPPORTED_ARCHITECTURES}, got {arch}")
    from . import cuda_runtime, triton_driver

    session = Session(arch, options or Options(), multiprocessors, strict)
    _active.append(session)
    try:
        try:
            with triton_driver.installed(session), cuda_runtime.installed(session), _counts_as_gpu(session):
                yield session
        except KernelError:
            raise
        except Exception as error:  # of host code, say, whose launch failed; it cannot know why
            _raise_what_is_untold(session, error)
            raise
        _raise_what_is_untold(session)
    finally:
        _active.pop()


def _raise_what_is_untold(session: Session, cause: Exception | None = None) -> None:
    """For what was found in a callback from C++, which cannot raise, or swallowed by a caller."""
    told = {id(launch) for launch in session.told}
    failed = next((launch for launch in session.launches if launch.all_findings and id(launch) not in told), None)
    if session.strict and failed is not None:
        raise KernelError(failed) from cause
