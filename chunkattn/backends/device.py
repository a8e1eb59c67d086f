"""Which devices count as a GPU for the kernels, and what they are: the one place where a backend asks.

A backend that runs GPU kernels calls `gpu(device)` in `supports()` (no GPU: refuse) and wherever an architecture, a
number of SMs or a limit of shared memory decides something. On CUDA devices the answer is the driver's. `stand_in`
makes another device type answer as a given GPU, which is how the kernels' tests run without one: whoever executes the
launches says what it stands for, and the backends' own code runs unchanged on that device's tensors.
"""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

# Most shared memory of a thread block in bytes, by compute capability times ten.
SHARED_BYTES = {
    80: 166_912,
    86: 101_376,
    87: 166_912,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    103: 232_448,
    120: 101_376,
}


@dataclass(frozen=True)
class Gpu:
    """What the kernels need to know of a GPU.

    Attributes:
        arch: compute capability times ten: 80, 86, 89, 90, 100, 120.
        num_sms: streaming multiprocessors.
        shared_bytes: most shared memory of a thread block.
        name: the product's, "" for a GPU that is not at hand.
        driver: version of its driver.
    """

    arch: int
    num_sms: int
    shared_bytes: int
    name: str = ""
    driver: str = ""

    @classmethod
    def of_arch(cls, arch: int, num_sms: int) -> Gpu:
        """A GPU that is not at hand, with the limits of its architecture (the smallest one known where it is not)."""
        return cls(arch, num_sms, SHARED_BYTES.get(arch, min(SHARED_BYTES.values())))


_stand_ins: dict[str, Gpu] = {}


def gpu(device: torch.device | str) -> Gpu | None:
    """The GPU behind a device, None if it is none (or none is present)."""
    device = torch.device(device)
    if device.type in _stand_ins:
        return _stand_ins[device.type]
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return _cuda_gpu(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _cuda_gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    arch = 10 * properties.major + properties.minor
    known = Gpu.of_arch(arch, properties.multi_processor_count)
    shared = getattr(properties, "shared_memory_per_block_optin", known.shared_bytes)
    driver = str(getattr(torch._C, "_cuda_getDriverVersion", str)())
    return Gpu(arch, properties.multi_processor_count, shared, properties.name, driver)


@functools.cache
def processor() -> str:
    """The CPU's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


@contextlib.contextmanager
def stand_in(device_type: str, stand_for: Gpu) -> Iterator[None]:
    """Inside it, tensors of this device type count as those of the given GPU."""
    before = _stand_ins.get(device_type)
    _stand_ins[device_type] = stand_for
    try:
        yield
    finally:
        if before is None:
            del _stand_ins[device_type]
        else:
            _stand_ins[device_type] = before
