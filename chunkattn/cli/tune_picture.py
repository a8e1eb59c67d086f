"""The curves behind a token budget: step time, rate, and what users felt in the replay or, without one, would wait."""

from __future__ import annotations

import io
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from chunkattn.tuning.plain_digits import plain
from chunkattn.tuning.token_budget import BudgetPlan
from chunkattn.tuning.traffic import Confirmation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINE, _LIMIT, _CHOSEN, _OTHER = "#1f77b4", "#d62728", "#2ca02c", "#7f7f7f"


def budget_picture(plan: BudgetPlan, confirmation: Confirmation | None, shown: Collection[int], error: float) -> bytes:
    """PNG of `budget_figure`."""
    buffer = io.BytesIO()
    budget_figure(plan, confirmation, shown, error).savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def budget_figure(plan: BudgetPlan, confirmation: Confirmation | None, shown: Collection[int], error: float) -> Figure:
    """A panel each for step time, prompt rate, and the replay or, where there was none, the predicted TTFT.

    Args:
        plan: candidates and objective.
        confirmation: the replay, if any.
        shown: budgets that are marked on the curves, which go through all.
        error: of predicted step times, for the band around them; NaN draws none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.8, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3)
    marked = [i for i, candidate in enumerate(plan.candidates) if candidate.budget in shown]
    _steps(axes[0], plan, marked, error)
    _rates(axes[1], plan, marked)
    chosen = confirmation.chosen.budget if confirmation is not None and confirmation.chosen is not None else None
    if confirmation is not None:
        _replay(axes[2], plan, confirmation)
    else:
        _prompts(axes[2], plan, marked)
    if plan.needs is not None:
        figure.suptitle(f"infeasible: no budget meets the objective, {plan.needs.binding.upper()} is missed")
    elif chosen is None:
        figure.suptitle("not confirmed: no budget meets the objective in the replay")
    for axis in axes:
        if chosen is not None:
            axis.axvline(chosen, color=_CHOSEN, lw=1, label=f"budget {chosen}")
        axis.set_xlabel("tokens of a step")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure


def _steps(axis: Any, plan: BudgetPlan, marked: list[int], error: float) -> None:
    sizes, times = [c.budget for c in plan.candidates], [c.itl * 1e3 for c in plan.candidates]
    axis.plot(sizes, times, ".-", markevery=marked, color=_LINE, label="predicted ITL p99")
    if not math.isnan(error):
        low, high = ([max(t * (1 + sign * error), 0.0) for t in times] for sign in (-1, 1))
        axis.fill_between(sizes, low, high, color=_LINE, alpha=0.2, lw=0, label=f"± {error:.1%}, nine steps of ten")
    axis.axhline(plan.objective.itl * 1e3, color=_LIMIT, label="ITL objective")
    axis.axhline(plan.objective.itl * (1 - plan.objective.margin) * 1e3, color=_LIMIT, ls=":", label="with margin")
    axis.set(title="step behind the longest history, ms", ylim=(0, None))


def _rates(axis: Any, plan: BudgetPlan, marked: list[int]) -> None:
    rates = [c.rate for c in plan.candidates]
    axis.plot([c.budget for c in plan.candidates], rates, ".-", markevery=marked, color=_LINE, label="predicted")
    feasible = [c for c in (plan.candidates[i] for i in marked) if c.feasible]
    if feasible:
        axis.plot([c.budget for c in feasible], [c.rate for c in feasible], "o", color=_CHOSEN, ms=5, label="feasible")
    axis.set(title="prompt tokens/s beside the decodes", ylim=(0, None))


def _prompts(axis: Any, plan: BudgetPlan, marked: list[int]) -> None:
    times, asked = [c.ttft for c in plan.candidates], plan.objective.ttft
    axis.plot([c.budget for c in plan.candidates], times, ".-", markevery=marked, color=_LINE, label="predicted TTFT")
    if asked is not None:
        axis.axhline(asked, color=_LIMIT, ls="--", label="TTFT objective")
        axis.axhline(asked * (1 - plan.objective.margin), color=_LIMIT, ls=":", label="with margin")
    axis.set(title=f"first token of a prompt of {plan.load.prompt}, s", ylim=(0, None))


def _replay(axis: Any, plan: BudgetPlan, confirmation: Confirmation) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    sizes = [r.budget for r in confirmation.replays]
    axis.plot(sizes, [r.itl_p99 * 1e3 for r in confirmation.replays], "o-", color=_LINE, label="ITL p99")
    axis.plot(sizes, [r.ttft_p99 * 1e3 for r in confirmation.replays], "s--", color=_OTHER, label="TTFT p99")
    axis.axhline(plan.objective.itl * 1e3, color=_LIMIT, label="ITL objective")
    if plan.objective.ttft is not None:
        axis.axhline(plan.objective.ttft * 1e3, color=_LIMIT, ls="--", label="TTFT objective")
    axis.set(title=f"replayed at {plain(confirmation.rate, 3)} requests/s, ms", yscale="log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value, 3)))
