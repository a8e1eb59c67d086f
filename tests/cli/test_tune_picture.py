"""What the picture of a token budget shows."""

from __future__ import annotations

import math

import pytest

from chunkattn.cli.tune_picture import budget_figure
from chunkattn.simulation import CostModel
from chunkattn.tuning.token_budget import BudgetPlan, Load, Objective, plan_token_budget
from chunkattn.tuning.traffic import Confirmation, Replayed

SHOWN = {64, 128, 256, 512}


def plan_of(objective: Objective) -> BudgetPlan:
    cost = CostModel((1, 512), (5e-3, 55e-3), 0.0, 0.0, 0.0, 0.0)
    return plan_token_budget(cost, Load(8, 100, 0, 0, 1000), objective, largest=512)


def replay_of(budget: int | None) -> Confirmation:
    replays = tuple(Replayed(size, 1e-4 * size, 2e-4 * size, 0.2, 0.064, 100.0, size == budget) for size in (128, 256))
    return Confirmation(1e4, next((r for r in replays if r.met), None), replays)


def test_band_objectives_and_the_budgets_of_the_table() -> None:
    plan = plan_of(Objective(0.05, ttft=1.5))
    figure = budget_figure(plan, replay_of(256), SHOWN, 0.2)
    steps, rates, replay = figure.axes
    predicted = steps.lines[0]
    (band,) = steps.collections
    corners = band.get_paths()[0].vertices
    for candidate in plan.candidates:
        around = [y for x, y in corners if x == candidate.budget]
        assert min(around) == pytest.approx(candidate.itl * 0.8e3)
        assert max(around) == pytest.approx(candidate.itl * 1.2e3)
    for curve in (predicted, rates.lines[0]):
        assert {plan.candidates[i].budget for i in curve.get_markevery()} == SHOWN
    assert set(rates.lines[1].get_xdata()) == SHOWN & {c.budget for c in plan.feasible}
    levels = {line.get_label(): line.get_ydata()[0] for line in replay.lines}
    assert levels["TTFT objective"] == 1500
    assert levels["ITL objective"] == 50
    assert figure.get_suptitle() == ""
    labels = [label.get_text() for label in replay.get_yticklabels()]
    assert {"20", "50", "100", "1000"} <= set(labels)
    assert "10000 requests/s" in replay.get_title()


def test_no_band_without_errors_and_no_objective_that_is_not_asked() -> None:
    figure = budget_figure(plan_of(Objective(0.05)), replay_of(256), SHOWN, math.nan)
    assert not figure.axes[0].collections
    assert "TTFT objective" not in {line.get_label() for line in figure.axes[2].lines}


@pytest.mark.parametrize(("itl", "ttft", "missed"), [(0.005, None, "ITL"), (0.05, 0.01, "TTFT")])
def test_infeasible_is_in_the_title_and_nothing_feasible_in_the_legend(
    itl: float, ttft: float | None, missed: str
) -> None:
    figure = budget_figure(plan_of(Objective(itl, ttft=ttft)), None, SHOWN, 0.1)
    assert figure.get_suptitle() == f"infeasible: no budget meets the objective, {missed} is missed"
    assert all(len(line.get_xdata()) for axis in figure.axes for line in axis.lines)
    assert "feasible" not in figure.axes[1].get_legend_handles_labels()[1]


def test_without_a_replay_the_predicted_ttft_is_shown() -> None:
    plan = plan_of(Objective(0.05, ttft=0.01))
    figure = budget_figure(plan, None, SHOWN, 0.1)
    curve, objective, margin = figure.axes[2].lines
    assert list(zip(curve.get_xdata(), curve.get_ydata())) == [(c.budget, c.ttft) for c in plan.candidates]
    assert {plan.candidates[i].budget for i in curve.get_markevery()} == SHOWN
    assert (objective.get_label(), objective.get_ydata()[0]) == ("TTFT objective", 0.01)
    assert margin.get_ydata()[0] == pytest.approx(0.009)
    (curve,) = budget_figure(plan_of(Objective(0.005)), None, SHOWN, 0.1).axes[2].lines
    assert curve.get_label() == "predicted TTFT"


def test_what_is_not_confirmed_says_so() -> None:
    figure = budget_figure(plan_of(Objective(0.05)), replay_of(None), SHOWN, 0.1)
    assert figure.get_suptitle().startswith("not confirmed")


@pytest.mark.parametrize("replay", [replay_of(256), None], ids=["replayed", "infeasible"])
def test_no_legend_covers_a_curve(replay: Confirmation | None) -> None:
    figure = budget_figure(plan_of(Objective(0.05, ttft=1.5 if replay else 0.01)), replay, SHOWN, 0.2)
    figure.canvas.draw()
    for axis in figure.axes:
        legend = axis.get_legend().get_window_extent()
        assert not legend.overlaps(axis.get_window_extent())
        assert figure.bbox.contains(legend.x0, legend.y0)
        assert figure.bbox.contains(legend.x1, legend.y1)
