"""A request trace as a load, and a token budget under that trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chunkattn.scheduler import SchedulerConfig
from chunkattn.serving import Slo, percentile, summarise
from chunkattn.simulation import CostModel, SimulatedClock, SimulatedExecutor, TraceRequest, to_requests
from chunkattn.simulation.replay import Worker, fitting, replay
from chunkattn.simulation.trace import scale
from chunkattn.tuning.token_budget import BudgetPlan, Candidate, Load, Objective

_BUSY = 0.7  # of what the budget could serve: busy, but no queue that only grows
_PAGE = 16


def load_of(trace: Sequence[TraceRequest], decodes: int) -> Load:
    """What decodes and chunks of this trace find.

    A running request is seen once for each of its output tokens, so contexts are weighted by output length. The mean
    over the decodes of a step varies less the more there are; its 99th percentile is taken.

    Args:
        trace: lengths are used only.
        decodes: requests that decode in every step.
    """
    weights = [request.num_output_tokens for request in trace]
    contexts = [request.num_prompt_tokens + request.num_output_tokens / 2 for request in trace]
    total = sum(weights)
    mean = sum(w * c for w, c in zip(weights, contexts)) / total
    variance = sum(w * (c - mean) ** 2 for w, c in zip(weights, contexts)) / total
    prompts = sorted(float(request.num_prompt_tokens) for request in trace)
    longest = round(percentile(prompts, 99))
    return Load(
        decodes=decodes,
        decode_context=math.ceil(mean + 2.33 * math.sqrt(variance / max(decodes, 1))),
        history=round(percentile(prompts, 50) / 2),
        longest_history=longest,
        prompt=longest,
    )


def sustainable_rate(candidate: Candidate, load: Load, trace: Sequence[TraceRequest]) -> float:
    """Requests a second that a budget serves without a queue that only grows, with room to spare."""
    prompt = sum(request.num_prompt_tokens for request in trace) / len(trace)
    output = sum(request.num_output_tokens for request in trace) / len(trace)
    step = (candidate.budget - load.decodes) / candidate.rate
    return _BUSY / max(prompt / candidate.rate, output * step / max(load.decodes, 1))


@dataclass(frozen=True)
class Replayed:
    """A trace under a budget, simulated.

    Attributes:
        budget: tokens of a step.
        itl_p99, itl_max, ttft_p50, ttft_p99: what users felt, seconds.
        output_rate: output tokens a second.
        met: whether both percentiles meet the objective, the margin not asked for.
    """

    budget: int
    itl_p99: float
    itl_max: float
    ttft_p50: float
    ttft_p99: float
    output_rate: float
    met: bool


def replay_budget(
    cost: CostModel, trace: Sequence[TraceRequest], budget: int, objective: Objective, *, max_num_seqs: int, rate: float
) -> Replayed:
    """Replays a trace in the simulator, with a cache that holds every running request.

    Args:
        cost: predicts steps.
        trace: one request a second on average.
        budget: tokens of a step.
        objective: what users may wait.
        max_num_seqs: most running requests.
        rate: factor of the arrivals.
    """
    longest = max(request.num_prompt_tokens + request.num_output_tokens for request in trace)
    pages = -(-longest // _PAGE) * max_num_seqs
    config = SchedulerConfig(budget, max_num_seqs, _PAGE, pages, enable_prefix_caching=False)
    clock = SimulatedClock()
    worker = Worker.build(config, SimulatedExecutor(cost, clock), clock)
    replay(worker, fitting(to_requests(scale(trace, rate=rate), None), config))
    summary = summarise([worker.recorder], worker.recorder.requests, slo=Slo())
    waits = any(request.num_output_tokens > 1 for request in trace)  # answers of one token have none
    itl, longest_itl = (summary[f"{kind}_itl_ms"] / 1e3 if waits else 0.0 for kind in ("p99", "max"))
    ttft = summary["p99_ttft_ms"] / 1e3
    met = itl <= objective.itl and (objective.ttft is None or ttft <= objective.ttft)
    return Replayed(
        budget,
        itl,
        longest_itl,
        summary["median_ttft_ms"] / 1e3,
        ttft,
        summary["output_throughput"],
        met,
    )


@dataclass(frozen=True)
class Confirmation:
    """What the simulator says of a plan.

    Attributes:
        rate: requests a second.
        chosen: the budget that meets the objective in the replay; None where no feasible one does.
        replays: of the chosen budget and of what was tried or stands beside it, by budget.
    """

    rate: float
    chosen: Replayed | None
    replays: tuple[Replayed, ...]


def confirm(
    plan: BudgetPlan, cost: CostModel, trace: Sequence[TraceRequest], *, max_num_seqs: int, rate: float | None = None
) -> Confirmation:
    """Replays the recommendation; where it misses the objective, the feasible budgets towards meeting it.

    Args:
        plan: with a recommendation.
        cost: predicts steps.
        trace: one request a second on average.
        max_num_seqs: most running requests.
        rate: arrivals a second; None takes what keeps the recommendation 70 % busy.
    """
    assert plan.recommended is not None
    rate = rate or sustainable_rate(plan.recommended, plan.load, trace)
    done: dict[int, Replayed] = {}

    def run(budget: int) -> Replayed:
        if budget not in done:
            done[budget] = replay_budget(cost, trace, budget, plan.objective, max_num_seqs=max_num_seqs, rate=rate)
        return done[budget]

    chosen = next((result for result in map(run, _order(plan)) if result.met), None)
    middle = (chosen or run(plan.recommended.budget)).budget
    sizes = [candidate.budget for candidate in plan.candidates]
    for beside in (middle / 2, 2 * middle):  # what the choice costs and saves
        if sizes[0] <= beside <= sizes[-1]:
            run(min(sizes, key=lambda size: abs(size - beside)))
    return Confirmation(rate, chosen, tuple(done[budget] for budget in sorted(done)))


def _order(plan: BudgetPlan) -> Iterator[int]:
    """The recommendation, then feasible budgets away from it, nearest first and in growing strides."""
    assert plan.recommended is not None
    first = plan.recommended.budget
    yield first
    sizes = [candidate.budget for candidate in plan.feasible]
    at = sizes.index(first)
    stride = 1
    while at - stride >= 0 or at + stride < len(sizes):
        if at - stride >= 0:
            yield sizes[at - stride]
        if at + stride < len(sizes):
            yield sizes[at + stride]
        stride *= 2
