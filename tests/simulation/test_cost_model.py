"""The cost model finds the terms it is made of, and says how wrong it is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from chunkattn.serving import StepWork
from chunkattn.simulation import CostModel, MeasuredStep


def truth(work: StepWork) -> float:
    """A machine that reads its weights once for up to 64 tokens."""
    linear = max(10e-3, work.num_tokens * 10e-3 / 64)
    return linear + 2e-8 * work.prefill_pairs + 3e-7 * work.num_keys + 1e-4 * work.num_logits


def draw(source: random.Random) -> StepWork:
    decodes = source.randint(0, 32)
    tokens = source.choice([0, 4, 16, 64, 128, 256, 512, 1024])
    if decodes + tokens == 0:
        decodes = 1
    history = source.randint(0, 2000)
    keys = decodes * source.randint(1, 2000)
    pairs = tokens * history + tokens * (tokens + 1) // 2
    chunks = decodes + bool(tokens)
    return StepWork(decodes + tokens, tokens, chunks, chunks, pairs, keys, keys + (tokens + history if tokens else 0))


def steps(seed: int, number: int, noise: float = 0.0) -> list[MeasuredStep]:
    source = random.Random(seed)
    drawn = [draw(source) for _ in range(number)]
    return [MeasuredStep(work, truth(work) * (1 + source.uniform(-noise, noise))) for work in drawn]


def test_fit_predicts_steps_it_has_not_seen() -> None:
    model = CostModel.fit(steps(1, 80), steps(2, 20), activation_bytes=(10.0, 1000.0), facts={"model": "m"})
    assert len(model.held_out_errors) == 20
    assert max(model.held_out_errors) < 0.10
    assert sum(model.held_out_errors) / 20 < 0.03
    assert "held-out error of the cost model: mean" in model.error_text
    assert "of 20 measured steps" in model.error_text
    assert model.activation_bytes(StepWork(num_tokens=4, num_logits=2)) == 2000.0
    assert model.activation_bytes(StepWork(num_tokens=400, num_logits=2)) == 4000.0


def test_more_work_never_takes_less_time() -> None:
    model = CostModel.fit(steps(1, 60, noise=0.3), [])
    times = [model.seconds(StepWork(num_tokens=n)) for n in range(1, 3000, 7)]
    assert times == sorted(times)
    assert "no held-out steps" in model.error_text
    terms = (model.seconds_per_pair, model.seconds_per_key, model.seconds_per_logit, model.seconds_per_request)
    assert min(terms) >= 0


def test_file_round_trip(tmp_path: Path) -> None:
    model = CostModel.fit(steps(1, 60), steps(2, 5), facts={"model": "m"})
    path = tmp_path / "cost.json"
    path.write_text(model.to_json())
    assert CostModel.read(path) == model
    with pytest.raises(ValueError, match="steps: expected at least 8"):
        CostModel.fit(steps(1, 7), [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, r"no JSON \(Expecting value"),
        ([], "a list where an object is expected"),
        ({"knots": ...}, "an object without knots"),
        ({"knots": ..., "linear_seconds": ...}, "an object without knots, linear_seconds$"),
        ({"liner_seconds": [1.0]}, "an unknown field 'liner_seconds'"),
        ({"knots": [1, 1]}, "linear_seconds for knots"),
        ({"knots": [4], "linear_seconds": [0.1]}, "two at least"),
        ({"knots": 3}, "knots = 3, where a list of amounts is expected"),
        ({"seconds_per_key": "fast"}, "seconds_per_key = 'fast', where an amount is expected"),
        ({"seconds_per_key": -1.0}, "seconds_per_key = -1.0"),
        ({"held_out_errors": [0.1, None]}, "held_out_errors = "),
        ({"facts": "none"}, "facts that are no object"),
    ],
)
def test_a_file_that_is_no_cost_model_is_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "cost.json"
    values = json.loads(CostModel.fit(steps(1, 60), steps(2, 5)).to_json())
    if isinstance(change, dict):
        values = {name: value for name, value in {**values, **change}.items() if value is not ...}
    path.write_text("" if change is None else json.dumps(values if isinstance(change, dict) else change))
    with pytest.raises(ValueError, match=f"calibration: expected a cost model in {path}, got .*{message}"):
        CostModel.read(path)
