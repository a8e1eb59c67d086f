"""The smallest token budget that serves nearly as fast as any that keeps the latency objective.

Sarathi-Serve (Agrawal et al., OSDI 2024) takes the largest budget whose mixed step meets the objective. Beyond the
point where the linear layers are busy, a larger one buys little rate for much latency, so the smallest one within a few
percent of the best rate is taken instead. Candidates are multiples of the GEMM tile of all tokens of a step, decodes
included: one token beyond a tile costs a whole tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from chunkattn.serving import StepWork, visible_pairs
from chunkattn.tuning.plain_digits import plain

RATE_SHARE = 0.95  # of the best feasible rate that the recommendation reaches


class StepTimes(Protocol):
    """Predicts steps; `chunkattn.simulation.CostModel` does."""

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""


@dataclass(frozen=True)
class Load:
    """What runs beside and in front of a chunk.

    Attributes:
        decodes: requests that decode in every step.
        decode_context: tokens each of them reads, on average.
        history: cached tokens before a typical chunk.
        longest_history: cached tokens before the chunk that must still meet the objective.
        prompt: tokens of the prompt whose time to first token is limited.
    """

    decodes: int
    decode_context: int
    history: int
    longest_history: int
    prompt: int

    def __post_init__(self) -> None:
        for name, least in (("decodes", 0), ("decode_context", 0), ("history", 0), ("longest_history", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.prompt < 1:
            raise ValueError(f"prompt: expected at least 1, got {self.prompt}")

    def step(self, chunk: int, history: int) -> StepWork:
        """Counts of a step of all decodes and one chunk of a prompt, which samples."""
        keys = self.decodes * self.decode_context
        some = int(chunk > 0)
        return StepWork(
            num_tokens=self.decodes + chunk,
            num_prefill_tokens=chunk,
            num_requests=self.decodes + some,
            num_logits=self.decodes + some,
            prefill_pairs=visible_pairs(history, chunk),
            decode_pairs=keys,
            num_keys=keys + (history + chunk) * some,
        )


@dataclass(frozen=True)
class Objective:
    """What users may wait, in seconds.

    Attributes:
        itl: 99th percentile between two tokens.
        ttft: 99th percentile to the first token; None asks nothing.
        margin: share of both that is kept free for what the model of step times does not know.
    """

    itl: float
    ttft: float | None = None
    margin: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("itl", self.itl), ("ttft", self.ttft)):
            if value is not None and not value > 0:
                raise ValueError(f"{name}: expected a positive time, got {value}")
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin: expected a share in [0, 1), got {self.margin}")


@dataclass(frozen=True)
class Candidate:
    """A budget and what it would do under the load.

    Attributes:
        budget: tokens of a step.
        itl: the longest step, behind the longest history: what a decode waits, seconds.
        ttft: all chunks of the prompt one after another, seconds, without waiting for others.
        rate: prompt tokens a second beside the decodes, at the typical history.
        meets_itl, meets_ttft: the objective, margin included.
    """

    budget: int
    itl: float
    ttft: float
    rate: float
    meets_itl: bool
    meets_ttft: bool

    @property
    def feasible(self) -> bool:
        return self.meets_itl and self.meets_ttft


@dataclass(frozen=True)
class Needs:
    """What would make an infeasible objective feasible; each alone, None where it alone cannot.

    Attributes:
        binding: "itl" or "ttft".
        itl: the least objective between tokens that some budget meets together with the other, seconds.
        ttft: the same of the first token; None where nothing is asked of it.
        decodes: most decodes a step.
        decode_context: longest average context of the decodes.
        speedup: how much faster every step must be.
        parts: the step of the smallest budget in seconds: "tokens" (linear layers and everything constant), "decodes"
            and "chunk" (what attention and sampling add).
    """

    binding: str
    itl: float | None
    ttft: float | None
    decodes: int | None
    decode_context: int | None
    speedup: float
    parts: dict[str, float]


@dataclass(frozen=True)
class BudgetPlan:
    """The answer.

    Attributes:
        load, objective: the question.
        candidates: every budget looked at, ascending.
        recommended: None where no budget meets the objective.
        needs: what would be needed then.
    """

    load: Load
    objective: Objective
    candidates: tuple[Candidate, ...]
    recommended: Candidate | None
    needs: Needs | None

    @property
    def feasible(self) -> tuple[Candidate, ...]:
        return tuple(candidate for candidate in self.candidates if candidate.feasible)

    def of(self, budget: int) -> Candidate:
        """The candidate of a budget, which must be one."""
        return next(candidate for candidate in self.candidates if candidate.budget == budget)

    def still_rises(self, budget: int) -> bool:
        """Whether budgets beyond the candidates may be better than this one.

        So it is above half of the last, which is feasible, and the last doubling bought more rate than a
        recommendation gives away.
        """
        last = self.candidates[-1]
        half = next((c for c in reversed(self.candidates) if 2 * c.budget <= last.budget), self.candidates[0])
        return last.feasible and 2 * budget > last.budget and half.rate < RATE_SHARE * last.rate


def budgets(decodes: int, tile: int, largest: int) -> list[int]:
    """Multiples of a tile that hold all decodes and at least half a tile of a prompt.

    Raises:
        ValueError: there is none.
    """
    if tile < 1:
        raise ValueError(f"tile: expected at least 1, got {tile}")
    least = -(-(decodes + max(tile // 2, 1)) // tile) * tile
    found = list(range(least, largest + 1, tile))
    if not found:
        raise ValueError(
            f"largest: expected at least {least} measured tokens for {decodes} decodes and tiles of {tile}, "
            f"got {largest}"
        )
    return found


def plan_token_budget(
    cost: StepTimes, load: Load, objective: Objective, *, tile: int = 64, largest: int = 8192
) -> BudgetPlan:
    """Recommends a budget, or says what would be needed for one.

    Args:
        cost: predicts steps.
        load: what runs.
        objective: what users may wait.
        tile: of the linear layers; candidates are its multiples.
        largest: most tokens of a step that `cost` knows.

    Raises:
        ValueError: no candidate at all.
    """
    sizes = budgets(load.decodes, tile, largest)
    candidates = tuple(_candidate(cost, load, objective, size) for size in sizes)
    feasible = [candidate for candidate in candidates if candidate.feasible]
    if not feasible:
        return BudgetPlan(load, objective, candidates, None, _needs(cost, load, objective, candidates, tile, largest))
    enough = RATE_SHARE * max(candidate.rate for candidate in feasible)
    recommended = next(candidate for candidate in feasible if candidate.rate >= enough)
    return BudgetPlan(load, objective, candidates, recommended, None)


def _candidate(cost: StepTimes, load: Load, objective: Objective, budget: int) -> Candidate:
    chunk = budget - load.decodes
    itl = cost.seconds(load.step(chunk, load.longest_history))
    ttft = sum(
        cost.seconds(load.step(min(chunk, load.prompt - start), start)) for start in range(0, load.prompt, chunk)
    )
    rate = chunk / cost.seconds(load.step(chunk, load.history))
    kept = 1 - objective.margin
    return Candidate(
        budget,
        itl,
        ttft,
        rate,
        itl <= objective.itl * kept,
        objective.ttft is None or ttft <= objective.ttft * kept,
    )


def _needs(
    cost: StepTimes, load: Load, objective: Objective, candidates: Sequence[Candidate], tile: int, largest: int
) -> Needs:
    kept = 1 - objective.margin
    in_itl = [c for c in candidates if c.meets_itl]
    in_ttft = [c for c in candidates if c.meets_ttft]

    def works(changed: Load) -> bool:
        try:
            sizes = budgets(changed.decodes, tile, largest)
        except ValueError:
            return False
        return any(_candidate(cost, changed, objective, size).feasible for size in sizes)

    least = candidates[0]
    chunk = least.budget - load.decodes
    whole = cost.seconds(load.step(chunk, load.longest_history))
    alone = cost.seconds(StepWork(num_tokens=least.budget))
    attended = cost.seconds(replace(load, decode_context=0, decodes=0).step(chunk, load.longest_history))
    of_chunk = attended - cost.seconds(StepWork(num_tokens=chunk))
    return Needs(
        binding="ttft" if in_itl else "itl",
        itl=min((c.itl / kept for c in in_ttft), default=None),
        ttft=None if objective.ttft is None else min((c.ttft / kept for c in in_itl), default=None),
        decodes=_largest(load.decodes, lambda n: works(replace(load, decodes=n)), least=1),
        decode_context=_largest(load.decode_context, lambda n: works(replace(load, decode_context=n)), least=1),
        speedup=min(
            max(
                c.itl / (objective.itl * kept),
                0.0 if objective.ttft is None else c.ttft / (objective.ttft * kept),
            )
            for c in candidates
        ),
        parts={"tokens": alone, "decodes": whole - alone - of_chunk, "chunk": of_chunk},
    )


def _largest(below: int, works: Callable[[int], bool], least: int) -> int | None:
    """Largest number under a bound for which something works that gets easier the smaller it is."""
    if below <= least or not works(least):
        return None
    low, high = least, below  # works at low, not at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def engine_settings(budget: int, max_num_seqs: int) -> dict[str, str]:
    """Command-line options by engine; every one counts decodes and prompts of a step together."""
    return {
        "vLLM": f"--enable-chunked-prefill --max-num-batched-tokens {budget} --max-num-seqs {max_num_seqs}",
        "SGLang": f"--chunked-prefill-size {budget} --enable-mixed-chunk --max-running-requests {max_num_seqs}",
        "TensorRT-LLM": f"--max_num_tokens {budget} --max_batch_size {max_num_seqs}, and enable_chunked_prefill: true "
        "in its YAML options",
    }


def describe_needs(plan: BudgetPlan) -> Iterator[str]:
    """What an infeasible objective would take, in sentences."""
    needs, objective = plan.needs, plan.objective
    if needs is None:
        return
    asked = f"ITL p99 {plain(objective.itl * 1e3, 4)} ms"
    if objective.ttft is not None:
        asked += f" and TTFT p99 {plain(objective.ttft, 4)} s"
    yield f"infeasible: no budget meets {asked} with {objective.margin:.0%} to spare; {needs.binding.upper()} is missed"
    first = plan.candidates[0]
    parts = ", ".join(f"{name} {plain(seconds * 1e3, 3)} ms" for name, seconds in needs.parts.items())
    yield f"the smallest budget, {first.budget} tokens, takes {plain(first.itl * 1e3, 4)} ms: {parts}"
    ways = []
    if needs.itl is not None and needs.itl > objective.itl:
        ways.append(f"an ITL objective of {plain(needs.itl * 1e3, 4)} ms")
    if objective.ttft is not None and needs.ttft is not None and needs.ttft > objective.ttft:
        ways.append(f"a TTFT objective of {plain(needs.ttft, 4)} s")
    if needs.decodes is not None:
        ways.append(f"at most {needs.decodes} decodes instead of {plan.load.decodes}")
    if needs.decode_context is not None:
        ways.append(f"decodes that read {needs.decode_context} tokens instead of {plan.load.decode_context}")
    ways.append(f"steps that are {plain(needs.speedup, 3)}× faster")
    for i, way in enumerate(ways):
        yield f"{'or' if i else 'needed:'} {way}"
