"""Arrival processes fitted to public traces, for when no trace is at hand."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist

from chunkattn.simulation.trace import MOONCAKE_BLOCK, TraceRequest

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_REMEMBERED = 1000  # conversations that may go on


@dataclass(frozen=True)
class SyntheticProcess:
    """How long requests are and when they come.

    Lengths are drawn from their quantiles, geometrically between them, with the trace's rank correlation (a Gaussian
    copula). Waits between arrivals are gamma distributed.

    Attributes:
        prompt, output: lengths at `LEVELS`.
        rate: requests a second.
        burstiness: shape of the gamma distribution, 1 / squared coefficient of variation: 1 is a Poisson process, less
            comes in bursts.
        correlation: of the ranks of prompt and output.
        continuing: share of requests that go on with an earlier conversation and repeat its prompt; None = nothing is
            shared, else every prompt begins with one common block.
    """

    prompt: tuple[float, ...]
    output: tuple[float, ...]
    rate: float
    burstiness: float = 1.0
    correlation: float = 0.0
    continuing: float | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            lengths = getattr(self, name)
            if len(lengths) != len(LEVELS) or lengths[0] < 1 or list(lengths) != sorted(lengths):
                raise ValueError(f"{name}: expected {len(LEVELS)} ascending lengths of at least 1, got {lengths}")
        if not (0 < self.rate < math.inf and 0 < self.burstiness < math.inf):
            raise ValueError(f"rate: expected positive rate and burstiness, got {self.rate} and {self.burstiness}")

    @classmethod
    def fit(cls, trace: Sequence[TraceRequest], rate: float = 1.0) -> SyntheticProcess:
        """Fits a trace.

        Args:
            trace: at least two requests.
            rate: where the trace has no arrival times.
        """
        if len(trace) < 2:
            raise ValueError(f"trace: expected at least two requests, got {len(trace)}")
        prompts = [float(request.num_prompt_tokens) for request in trace]
        outputs = [float(request.num_output_tokens) for request in trace]
        burstiness = 1.0
        if not math.isnan(trace[0].arrival):
            waits = [after.arrival - before.arrival for before, after in pairwise(trace)]
            mean = sum(waits) / len(waits)
            if mean > 0:
                rate = 1 / mean
                variance = sum((wait - mean) ** 2 for wait in waits) / len(waits)
                burstiness = mean**2 / variance if variance else 1e6
        continuing = None
        if any(request.hash_ids for request in trace):
            seen: set[int] = set()
            continued = 0
            for request in trace:
                continued += len(request.hash_ids) > 1 and request.hash_ids[1] in seen
                seen.update(request.hash_ids)
            continuing = continued / len(trace)
        return cls(
            _quantiles(prompts), _quantiles(outputs), rate, burstiness, _rank_correlation(prompts, outputs), continuing
        )

    def sample(self, number: int, seed: int = 0) -> list[TraceRequest]:
        """Draws requests.

        Args:
            number: how many.
            seed: of the draw.
        """
        source = random.Random(seed)
        normal = NormalDist()
        # The normal correlation that gives this rank correlation (Pearson, 1907).
        rho = 2 * math.sin(math.pi / 6 * self.correlation)
        arrival = 0.0
        fresh = 1
        conversations: list[tuple[int, ...]] = []
        requests = []
        for _ in range(number):
            first, second = source.gauss(0, 1), source.gauss(0, 1)
            prompt = _at(self.prompt, normal.cdf(first))
            output = _at(self.output, normal.cdf(rho * first + math.sqrt(1 - rho * rho) * second))
            hash_ids: tuple[int, ...] = ()
            if self.continuing is not None:
                blocks = -(-prompt // MOONCAKE_BLOCK)
                goes_on = [c for c in conversations if len(c) < blocks] if source.random() < self.continuing else []
                hash_ids = (source.choice(goes_on) if goes_on else (0,))[:blocks]
                hash_ids += tuple(range(fresh, fresh + blocks - len(hash_ids)))
                fresh += blocks
                conversations = [*conversations[-_REMEMBERED:], hash_ids]
            requests.append(TraceRequest(arrival, prompt, output, hash_ids))
            arrival += source.gammavariate(self.burstiness, 1 / (self.burstiness * self.rate))
        return requests

    def with_arrivals(self, lengths: Sequence[TraceRequest], seed: int = 0) -> list[TraceRequest]:
        """Gives arrival times to a trace of lengths alone."""
        source = random.Random(seed)
        arrival = 0.0
        timed = []
        for request in lengths:
            timed.append(replace(request, arrival=arrival))
            arrival += source.gammavariate(self.burstiness, 1 / (self.burstiness * self.rate))
        return timed


def _at(quantiles: Sequence[float], level: float) -> int:
    i = min(max(bisect.bisect_right(LEVELS, level) - 1, 0), len(LEVELS) - 2)
    share = (level - LEVELS[i]) / (LEVELS[i + 1] - LEVELS[i])
    return max(round(math.exp(math.log(quantiles[i]) * (1 - share) + math.log(quantiles[i + 1]) * share)), 1)


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(ordered[round((len(ordered) - 1) * level)] for level in LEVELS)


def _rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    def ranks(values: Sequence[float]) -> list[float]:
        ranked = [0.0] * len(values)
        for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
            ranked[i] = rank - (len(values) - 1) / 2
        return ranked

    ranked_a, ranked_b = ranks(a), ranks(b)
    return sum(x * y for x, y in zip(ranked_a, ranked_b)) / sum(x * x for x in ranked_a)


# Fitted with `SyntheticProcess.fit`. Azure LLM inference traces 2023 (Patel et al., "Splitwise", ISCA 2024; CC-BY 4.0),
# Mooncake conversation trace (Qin et al., FAST 2025; Apache-2.0), lengths of ShareGPT, arXiv summarisation and Bob's
# writing benchmark as Sarathi-Serve, Vidur and Etalon filtered them.
PROCESSES = {
    "azure-conv": SyntheticProcess(
        (2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050),
        (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000),
        rate=5.53,
        burstiness=0.835,
        correlation=0.073,
    ),
    "azure-code": SyntheticProcess(
        (3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437),
        (6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 1899),
        rate=2.57,
        burstiness=0.006,  # the service slept once for minutes
        correlation=-0.021,
    ),
    "mooncake": SyntheticProcess(
        (891, 894, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 126195),
        (1, 3, 10, 24, 156, 350, 472, 597, 698, 1119, 2000),
        rate=3.40,
        burstiness=0.109,
        correlation=0.072,
        continuing=0.387,
    ),
    "sharegpt": SyntheticProcess(
        (1, 12, 29, 74, 580, 1730, 3734, 5696, 6563, 7434, 8141),
        (2, 6, 44, 84, 228, 415, 628, 834, 920, 998, 1024),
        rate=1.0,
        correlation=0.051,
    ),
    "arxiv": SyntheticProcess(
        (1, 73, 749, 1242, 1986, 2730, 3370, 3702, 3813, 3933, 4054),
        (5, 36, 60, 78, 115, 167, 242, 372, 736, 3271, 4056),
        rate=1.0,
        correlation=-0.114,
    ),
    "bwb": SyntheticProcess(
        (5, 405, 682, 789, 915, 1037, 1178, 1453, 1584, 1800, 3504),
        (6, 540, 1017, 1209, 1421, 1601, 1768, 2149, 2342, 2533, 2858),
        rate=1.0,
        correlation=0.805,
    ),
}
