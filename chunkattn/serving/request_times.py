"""What users feel: time to first token, time per output token, the longest stall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from chunkattn.serving.engine import StepRecord


@dataclass(frozen=True)
class RequestTimes:
    """When one request's tokens came, in seconds on the engine's clock.

    Attributes:
        request_id: whose.
        arrival: when it was queued.
        token_times: when each token came; at least one.
    """

    request_id: str
    arrival: float
    token_times: tuple[float, ...]

    @property
    def ttft(self) -> float:
        """Time to first token: queueing and all chunks of the prompt."""
        return self.token_times[0] - self.arrival

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        gaps = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / gaps if gaps else None

    @property
    def longest_stall(self) -> float:
        """Longest wait between two tokens; 0 for a single token."""
        return max((after - before for before, after in pairwise(self.token_times)), default=0.0)


def request_times(steps: Sequence[StepRecord]) -> dict[str, RequestTimes]:
    """Gathers every request's token times; a token comes when its step ends.

    Args:
        steps: the records of an engine.
    """
    times: dict[str, list[float]] = {}
    arrivals: dict[str, float] = {}
    for step in steps:
        for request, _ in step.tokens:
            times.setdefault(request.request_id, []).append(step.end)
            arrivals[request.request_id] = request.arrival_time
    return {key: RequestTimes(key, arrivals[key], tuple(value)) for key, value in times.items()}
