"""Which request goes first. Smaller keys go first; the last running request is the first to be preempted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from chunkattn.scheduler.config import SchedulerConfig
from chunkattn.scheduler.request import Request


class Policy(Protocol):
    """Orders requests by `Request.key`, which it sets; keys are unique and do not move within a step."""

    def on_add(self, request: Request, num_served_tokens: int) -> None:
        """Sets the key of a new request; ``num_served_tokens`` is what the scheduler has computed so far."""

    def refresh(self, requests: Collection[Request]) -> bool:
        """Brings the keys of all unfinished requests up to date before a step; whether any may have moved."""

    def on_service(self, request: Request, num_tokens: int, is_decode: bool) -> None:
        """Hears of tokens computed for the first time; a recomputation is nobody's bill."""

    def on_finish(self, request: Request) -> None:
        """Hears that a request is over."""


class Fcfs:
    """First come, first served."""

    def on_add(self, request: Request, num_served_tokens: int) -> None:
        request.key = (request.arrival_time, request.sequence_number)

    def refresh(self, requests: Collection[Request]) -> bool:
        return False

    def on_service(self, request: Request, num_tokens: int, is_decode: bool) -> None:
        return None

    def on_finish(self, request: Request) -> None:
        return None


class Sjf(Fcfs):
    """Shortest prompt first, aged by service.

    A request can be overtaken only by those that arrive before ``len(prompt) / aging`` further tokens are served. The
    key is fixed at arrival: ageing everybody by the same amount changes no order.
    """

    def __init__(self, aging: float) -> None:
        self._aging = aging

    def on_add(self, request: Request, num_served_tokens: int) -> None:
        work = len(request.prompt_token_ids) + self._aging * num_served_tokens
        request.key = (work, request.arrival_time, request.sequence_number)


class Fair(Fcfs):
    """The client that got least goes first: the virtual token counter of Sheng et al., OSDI 2024, algorithm 2."""

    def __init__(self, weights: tuple[float, float]) -> None:
        self._weights = weights
        self._counters: dict[str, float] = {}
        self._unfinished: Counter[str] = Counter()
        self._last = ""  # the client served last

    def on_add(self, request: Request, num_served_tokens: int) -> None:
        client = request.client_id
        if not self._unfinished[client]:  # who was away has saved up nothing
            others = [self._counters[c] for c, count in self._unfinished.items() if count]
            floor = min(others) if others else self._counters.get(self._last, 0.0)
            self._counters[client] = max(self._counters.get(client, 0.0), floor)
        self._unfinished[client] += 1
        request.key = (self._counters[client], request.arrival_time, request.sequence_number)

    def refresh(self, requests: Collection[Request]) -> bool:
        for request in requests:
            request.key = (self._counters[request.client_id], request.arrival_time, request.sequence_number)
        return True

    def on_service(self, request: Request, num_tokens: int, is_decode: bool) -> None:
        self._last = request.client_id
        self._counters[self._last] += self._weights[is_decode] * num_tokens

    def on_finish(self, request: Request) -> None:
        self._unfinished[request.client_id] -= 1


def make_policy(config: SchedulerConfig) -> Policy:
    """The policy that a config names."""
    if config.policy == "sjf":
        return Sjf(config.sjf_aging)
    return Fair(config.fair_weights) if config.policy == "fair" else Fcfs()
