"""The curves behind a token budget: step time, rate, and what users felt in the replay."""

from __future__ import annotations

import io
from typing import Any

from chunkattn.tuning.token_budget import BudgetPlan
from chunkattn.tuning.traffic import Confirmation

_LINE, _LIMIT, _CHOSEN = "#1f77b4", "#d62728", "#2ca02c"


def budget_picture(plan: BudgetPlan, confirmation: Confirmation | None) -> bytes:
    """PNG with a panel each for step time, prompt rate and, where there was one, the replay."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = 3 if confirmation is not None else 2
    figure = Figure(figsize=(4.6 * panels, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels)
    sizes = [c.budget for c in plan.candidates]
    axes[0].plot(sizes, [c.itl * 1e3 for c in plan.candidates], color=_LINE)
    axes[0].axhline(plan.objective.itl * 1e3, color=_LIMIT, label="ITL objective")
    axes[0].axhline(plan.objective.itl * (1 - plan.objective.margin) * 1e3, color=_LIMIT, ls=":", label="with margin")
    axes[0].set(title="step behind the longest history, ms", ylim=(0, None))
    axes[1].plot(sizes, [c.rate for c in plan.candidates], color=_LINE)
    feasible = plan.feasible
    axes[1].plot([c.budget for c in feasible], [c.rate for c in feasible], ".", color=_CHOSEN, ms=3, label="feasible")
    axes[1].set(title="prompt tokens/s beside the decodes", ylim=(0, None))
    if confirmation is not None:
        _replay(axes[2], plan, confirmation)
    chosen = confirmation.chosen.budget if confirmation is not None and confirmation.chosen is not None else None
    for axis in axes:
        if chosen is not None:
            axis.axvline(chosen, color=_CHOSEN, lw=1, label=f"budget {chosen}")
        axis.set_xlabel("tokens of a step")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _replay(axis: Any, plan: BudgetPlan, confirmation: Confirmation) -> None:
    sizes = [r.budget for r in confirmation.replays]
    axis.plot(sizes, [r.itl_p99 * 1e3 for r in confirmation.replays], "o-", color=_LINE, label="ITL p99")
    axis.plot(sizes, [r.ttft_p99 * 1e3 for r in confirmation.replays], "s--", color="#7f7f7f", label="TTFT p99")
    axis.axhline(plan.objective.itl * 1e3, color=_LIMIT, label="ITL objective")
    axis.set(title=f"replayed at {confirmation.rate:.3g} requests/s, ms", yscale="log")
