"""Which request goes first. Smaller keys go first; the last running request is the first to be preempted."""

from __future__ import annotations

from typing import Protocol

from chunkattn.scheduler.request import Request


class Policy(Protocol):
    """Orders requests. A request's key must not change within a step."""

    def order(self, request: Request) -> tuple[float, ...]:
        """The request's key; unique."""
        ...


class Fcfs:
    """First come, first served."""

    def order(self, request: Request) -> tuple[float, ...]:
        return (request.arrival_time, request.sequence_number)
