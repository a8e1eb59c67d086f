"""The most memory one call holds beyond what it was given, native allocations included."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """Peak of one call above what was there before it; None where the system does not say.

    On a GPU torch's allocator counts. On Linux it is the process's resident peak, after free heap pages were handed
    back; scratch that a provider keeps from call to call is not in it.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5", encoding="ascii")  # resets the peak to what is resident now
        before = _kibibytes("VmRSS")
        call()
        return max(0, _kibibytes("VmHWM") - before) * 1024
    except (OSError, AttributeError, ValueError):
        return None


def _kibibytes(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise ValueError(name)
