"""Clocks that wait for nobody: idle time is skipped, and every worker of a replay has its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the replay began."""

    def __call__(self) -> float: ...

    def skip_to(self, when: float) -> None:
        """Moves ahead to a time; never back."""

    def resume(self) -> None:
        """Work begins."""

    def pause(self) -> None:
        """Work ends."""


class SimulatedClock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Moves ahead by what something took."""
        self.now += seconds

    def skip_to(self, when: float) -> None:
        self.now = max(self.now, when)

    def resume(self) -> None:
        return None

    def pause(self) -> None:
        return None


class WorkClock:
    """Real time, but only while its worker works: two workers take turns on one machine as if each had its own."""

    def __init__(self) -> None:
        self._now = 0.0
        self._resumed: float | None = None

    def __call__(self) -> float:
        return self._now if self._resumed is None else self._now + time.perf_counter() - self._resumed

    def skip_to(self, when: float) -> None:
        self._now = max(self._now, when)

    def resume(self) -> None:
        self._resumed = time.perf_counter()

    def pause(self) -> None:
        self._now, self._resumed = self(), None
