"""One window of timed calls, and how quiet the machine was meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

QUIET_CORES = 0.08
"""A window counts as quiet while other processes use less than this many cores."""

_TICK_RATE = os.sysconf("SC_CLK_TCK")
_TICKS = 1.5


@dataclass(frozen=True)
class Window:
    """Calls timed one after another.

    Attributes:
        median_s, best_s: seconds of a call.
        calls: how many.
        other_cores: cores that other processes used meanwhile; NaN where the system does not say.
        awake: share of the timed seconds in which the calling thread was on a CPU.
        cpu_s: CPU seconds of a call, median, all threads of this process together.
    """

    median_s: float
    best_s: float
    calls: int
    other_cores: float
    awake: float
    cpu_s: float | None = None

    @property
    def quiet(self) -> bool:
        """Whether the others were quiet; unknown counts as quiet."""
        return not self.other_cores >= QUIET_CORES


def window(
    call: Callable[[], object],
    *,
    seconds: float,
    min_calls: int = 2,
    before: Callable[[], object] | None = None,
    after: Callable[[object], None] | None = None,
    device: torch.device | None = None,
) -> Window:
    """Times calls until `seconds` have passed and `min_calls` are done.

    Args:
        call: the work.
        seconds: wall time of the window.
        min_calls: at least so many, also when one takes longer.
        before: runs ahead of each call, untimed.
        after: gets what the call returned, untimed.
        device: on a CUDA device events time the call, from an idle device; the call's own launch cost shows only
            where the device would have waited for it.
    """
    sync = _sync(device)
    clock = _clock(device)
    times: list[float] = []
    spent: list[float] = []
    on_cpu = 0.0
    busy, own, begin = _machine_seconds(), time.process_time(), time.perf_counter()
    while len(times) < min_calls or time.perf_counter() - begin < seconds:
        if before is not None:
            before()
        sync()
        thread, process = time.thread_time(), time.process_time()
        seconds_taken, result = clock(call)
        spent.append(time.process_time() - process)
        times.append(seconds_taken)
        on_cpu += time.thread_time() - thread
        if after is not None:
            after(result)
    elapsed = time.perf_counter() - begin
    # The system counts whole ticks; up to that much of the others' time may be our own, rounded.
    other = (_machine_seconds() - busy - (time.process_time() - own) - _TICKS / _TICK_RATE) / elapsed
    return Window(
        median_s=statistics.median(times),
        best_s=min(times),
        calls=len(times),
        other_cores=max(0.0, other) if other == other else other,
        awake=on_cpu / sum(times),
        cpu_s=statistics.median(spent),
    )


def _machine_seconds() -> float:
    """CPU seconds that all processes of the machine have used (steal included), NaN if unknown."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    except OSError:
        return float("nan")
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / _TICK_RATE


def _sync(device: torch.device | None) -> Callable[[], None]:
    if device is not None and device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def _clock(device: torch.device | None) -> Callable[[Callable[[], object]], tuple[float, object]]:
    """Runs a call; returns its seconds and its result."""

    def host(call: Callable[[], object]) -> tuple[float, object]:
        start = time.perf_counter()
        result = call()
        return time.perf_counter() - start, result

    def events(call: Callable[[], object]) -> tuple[float, object]:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        result = call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3, result

    return events if device is not None and device.type == "cuda" else host
