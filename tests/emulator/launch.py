"""Launching kernels of a PTX module on torch tensors."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from . import native
from .report import Finding, LaunchResult


@dataclass(frozen=True)
class Options:
    """How a launch is run and what is checked.

    Attributes:
        seed: 0 is a fixed order; any other seed permutes CTAs, warps and time slices.
        async_mode: "lazy" completes asynchronous work at the latest legal moment, "eager" at once,
            "random" at moments drawn from the seed.
        check_races: shared-memory races, global races between CTAs, mbarrier visibility.
        check_undefined: data that was never written reaching an address, a branch or global memory.
        check_proxies: missing fence.proxy.async, wgmma.fence, mbarrier and tensor-map visibility.
        check_mbarrier_init: demand fence.mbarrier_init (or fence.proxy.async) between mbarrier.init and TMA.
        check_equal_writes: two unordered writes of the same bytes to shared memory are a race too.
        strict_cp_async_proxy: demand fence.proxy.async between cp.async data and wgmma or TMA, too: cp.async writes
            through the generic proxy.
        count_memory: count bank conflicts and global sectors as well.
        shared_fill, register_fill: byte that fills shared memory and registers before the start.
        resident_clusters: how many clusters may run side by side under a seed.
        max_warp_instructions: a launch that executes more is taken for one that never ends.
    """

    seed: int = 0
    async_mode: str = "lazy"
    check_races: bool = True
    check_undefined: bool = True
    check_proxies: bool = True
    check_mbarrier_init: bool = True
    check_equal_writes: bool = True
    strict_cp_async_proxy: bool = True
    count_memory: bool = False
    shared_fill: int = 0xFF
    register_fill: int = 0xFF
    resident_clusters: int = 8
    max_warp_instructions: int = 4_000_000_000

    @classmethod
    def for_seed(cls, seed: int, **changes: Any) -> Options:
        """The schedule of a seed: 0 and odd seeds complete asynchronous work late, even ones at random."""
        mode = "random" if seed and seed % 2 == 0 else "lazy"
        return cls(**{"seed": seed, "async_mode": mode, **changes})


def without_known_gaps(options: Options, triton: tuple[int, int]) -> Options:
    """For kernels that a Triton of this version compiled, without what its code generation leaves out.

    It orders mbarrier.init before TMA, and before 3.9 cp.async before wgmma as well, by a barrier and without a proxy
    fence, which its users cannot add. Where a layout gives several warps the same elements, all of them store these.
    """
    fences_cp_async = options.strict_cp_async_proxy and triton >= (3, 9)
    return replace(options, check_mbarrier_init=False, check_equal_writes=False, strict_cp_async_proxy=fences_cp_async)


UNCHECKED = Options(async_mode="eager", check_races=False, check_undefined=False, check_proxies=False)


@dataclass(frozen=True)
class Buffer:
    """Memory a kernel may touch: [address, address + size) bytes, with the name used in messages.

    `defined=False` means that reading it before it is written gives undefined data.
    """

    address: int
    size: int
    name: str
    writable: bool = True
    defined: bool = True

    @classmethod
    def of(cls, tensor: torch.Tensor, name: str, writable: bool = True, defined: bool = True) -> Buffer:
        """The bytes that a tensor's elements span (not its whole storage)."""
        if tensor.numel() == 0:
            return cls(tensor.data_ptr(), 0, name, writable, defined)
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
        return cls(tensor.data_ptr(), (last + 1) * tensor.element_size(), name, writable, defined)


def merge_overlapping(buffers: Iterable[Buffer]) -> list[Buffer]:
    """One buffer where several views share memory; the names are joined, the widest rights hold."""
    merged: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (b.address, -b.size)):
        if buffer.size == 0:
            continue
        last = merged[-1] if merged else None
        if last and buffer.address < last.address + last.size:
            end = max(last.address + last.size, buffer.address + buffer.size)
            names = last.name.split("/")
            name = last.name if buffer.name in names or len(names) > 3 else f"{last.name}/{buffer.name}"
            merged[-1] = Buffer(
                last.address,
                end - last.address,
                name,
                last.writable or buffer.writable,
                last.defined and buffer.defined,
            )
        else:
            merged.append(buffer)
    return merged


def pack_parameters(layout: Sequence[tuple[int, int]], values: Sequence[Any]) -> bytes:
    """Kernel parameter bytes from tensors (their address), ints, floats, bools or raw bytes.

    Raises:
        ValueError: more values than parameters, or raw bytes of the wrong length.
    """
    if len(values) > len(layout):
        raise ValueError(f"values: expected at most {len(layout)} for this kernel, got {len(values)}")
    buffer = bytearray(layout[-1][0] + layout[-1][1]) if layout else bytearray()
    for (offset, size), value in zip(layout, values):
        if isinstance(value, (bytes, bytearray)):
            if len(value) != size:
                raise ValueError(f"values: expected {size} bytes at offset {offset}, got {len(value)}")
            buffer[offset : offset + size] = value
        elif isinstance(value, torch.Tensor):
            struct.pack_into("<Q", buffer, offset, value.data_ptr())
        elif isinstance(value, float):
            struct.pack_into({2: "<e", 4: "<f", 8: "<d"}[size], buffer, offset, value)
        else:
            buffer[offset : offset + size] = (int(value) % (1 << (8 * size))).to_bytes(size, "little")
    return bytes(buffer)


class PtxModule:
    """A PTX text ready to run.

    Example:
        >>> kernels = PtxModule(ptx)
        >>> result = kernels.launch("add_one", grid=4, block=128, values=[x, n], buffers=[Buffer.of(x, "x")])
        >>> result.require_clean()
    """

    def __init__(self, ptx: str):
        self.ptx = ptx
        self.last_result: LaunchResult | None = None
        self._module = native.module().Module(ptx)

    @property
    def kernels(self) -> list[str]:
        return self._module.entries()

    def parameters(self, kernel: str) -> list[tuple[int, int]]:
        """(offset, size) in bytes of each parameter; decodes the kernel."""
        return self._module.parameters(kernel)

    def describe(self, kernel: str) -> dict[str, Any]:
        return self._module.describe(kernel)

    def profile(self, kernel: str) -> list[tuple[int, str, str, int]]:
        """(PTX line, source line, text, times executed) of every instruction in the last launch."""
        return self._module.profile(kernel)

    def idle(self, kernel: str) -> list[tuple[int, int, int]]:
        """(PTX line, times executed, times it had nothing to do) of every instruction in the last launch.

        A wait has nothing to do if no copy or wgmma is there that it covers, a commit if its group is empty, a
        wgmma.fence if no register was touched, a wait for an mbarrier if it asks for the phase before the first one, a
        barrier if it follows another one of the same warps and none of them has accessed memory since.
        """
        return self._module.idle(kernel)

    def launch(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        values: Sequence[Any] | bytes = (),
        buffers: Iterable[Buffer] | None = None,
        dynamic_shared: int = 0,
        cluster: Sequence[int] = (1, 1, 1),
        options: Options | None = None,
    ) -> LaunchResult:
        """Runs a grid to its end, or until something makes going on impossible.

        Args:
            values: the parameters in order, or their bytes.
            buffers: memory the kernel may touch; None: the tensors among `values`.
            dynamic_shared: bytes.

        Raises:
            RuntimeError: the PTX holds an instruction form that is not emulated (named in the message).
        """
        options = options or Options()
        if buffers is None:
            tensors = [v for v in values if isinstance(v, torch.Tensor)]
            buffers = [Buffer.of(tensor, f"argument {k}") for k, tensor in enumerate(tensors)]
        raw = values if isinstance(values, bytes) else pack_parameters(self.parameters(kernel), values)
        allocations = [(b.address, b.size, b.writable, b.defined, b.name) for b in merge_overlapping(buffers)]
        outcome = self._module.launch(
            kernel,
            _triple(grid),
            _triple(block),
            dynamic_shared,
            raw,
            allocations,
            _triple(cluster),
            asdict(options),
        )
        stopped = Finding(outcome["error_kind"], outcome["error"]) if outcome["error"] else None
        findings = tuple(Finding(**item) for item in outcome["findings"])
        result = LaunchResult(kernel, findings, stopped, outcome["counters"], outcome["seconds"], options.seed)
        self.last_result = result
        return result


def _triple(extent: int | Sequence[int]) -> list[int]:
    values = [extent] if isinstance(extent, int) else list(extent)
    return values + [1] * (3 - len(values))
