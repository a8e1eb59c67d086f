"""Step times from step counts, fitted to measured steps.

T = linear(tokens) + a·prefill pairs + b·keys + c·logits + d·requests, all ≥ 0. The linear layers have no formula that
holds (the weights are read once for a token or for fifty, tiles are rounded up), so they are interpolated between
knots; attention is a formula because context lengths are too many to measure. Vidur (Agrawal et al., MLSys 2024) and
DistServe (Zhong et al., OSDI 2024) fit the same terms.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from chunkattn.extras import require
from chunkattn.serving import StepWork

_KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
LEAST_STEPS = 8  # a fit of fewer would go through noise


@dataclass(frozen=True)
class MeasuredStep:
    """A step that ran and what it took.

    Attributes:
        work: its counts.
        seconds: its time, host included.
    """

    work: StepWork
    seconds: float


@dataclass(frozen=True)
class CostModel:
    """Predicts the time of a step.

    Attributes:
        knots: numbers of tokens, ascending.
        linear_seconds: time of the linear layers and everything constant at each knot.
        seconds_per_pair, seconds_per_key, seconds_per_logit, seconds_per_request: the other terms.
        activation_bytes_per_token, activation_bytes_per_logit: memory of a step.
        held_out_errors: |predicted / measured - 1| of steps that were not used for the fit.
        facts: what was measured: model, dtype, device, threads, machine.
    """

    knots: tuple[int, ...]
    linear_seconds: tuple[float, ...]
    seconds_per_pair: float
    seconds_per_key: float
    seconds_per_logit: float
    seconds_per_request: float
    activation_bytes_per_token: float = 0.0
    activation_bytes_per_logit: float = 0.0
    held_out_errors: tuple[float, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""
        knots, linear = self.knots, self.linear_seconds
        tokens = work.num_tokens
        i = min(max(bisect.bisect_right(knots, tokens) - 1, 0), len(knots) - 2)
        slope = (linear[i + 1] - linear[i]) / (knots[i + 1] - knots[i])  # also beyond the last knot
        return (
            linear[i]
            + slope * (tokens - knots[i])
            + self.seconds_per_pair * work.prefill_pairs
            + self.seconds_per_key * work.num_keys
            + self.seconds_per_logit * work.num_logits
            + self.seconds_per_request * work.num_requests
        )

    def activation_bytes(self, work: StepWork) -> float:
        """Memory of a step beside weights and cache: the layers are over when the logits come."""
        return max(self.activation_bytes_per_token * work.num_tokens, self.activation_bytes_per_logit * work.num_logits)

    @property
    def error_text(self) -> str:
        """The held-out error in words, to stand beside every simulated figure."""
        errors = sorted(self.held_out_errors)
        if not errors:
            return "simulated; the cost model has no held-out steps"
        mean = sum(errors) / len(errors)
        return (
            f"simulated; held-out error of the cost model: mean {mean:.1%}, worst {errors[-1]:.1%} "
            f"of {len(errors)} measured steps"
        )

    @classmethod
    def fit(
        cls,
        steps: Sequence[MeasuredStep],
        held_out: Sequence[MeasuredStep],
        *,
        activation_bytes: tuple[float, float] = (0.0, 0.0),
        facts: Mapping[str, Any] | None = None,
    ) -> CostModel:
        """Fits measured steps by non-negative least squares of the relative error.

        Args:
            steps: used for the fit.
            held_out: measured the same way, used for the error only.
            activation_bytes: per token and per row of logits.
            facts: what was measured.

        Raises:
            ValueError: too few steps.
        """
        if len(steps) < LEAST_STEPS:
            raise ValueError(f"steps: expected at least {LEAST_STEPS} measured steps, got {len(steps)}")
        numpy = require("numpy", extra="demo", purpose="fitting a cost model")
        largest = max(step.work.num_tokens for step in steps)
        smallest = min(step.work.num_tokens for step in steps)
        measured = {step.work.num_tokens for step in steps}
        inner = [k for k in _KNOTS if smallest < k < largest and any(k / 1.5 <= m <= k * 1.5 for m in measured)]
        knots = [smallest, *inner, max(largest, smallest + 1)]
        rows = numpy.array([[*_hats(knots, s.work.num_tokens), *_terms(s.work)] for s in steps], dtype=float)
        seconds = numpy.array([s.seconds for s in steps])
        solution = _non_negative(numpy, rows / seconds[:, None], numpy.ones(len(steps)))
        linear = [max(solution[: i + 1]) for i in range(len(knots))]  # more tokens never take less
        pair, key, logit, request = (float(x) for x in solution[len(knots) :])
        model = cls(
            tuple(knots),
            tuple(float(x) for x in linear),
            seconds_per_pair=pair,
            seconds_per_key=key,
            seconds_per_logit=logit,
            seconds_per_request=request,
            activation_bytes_per_token=activation_bytes[0],
            activation_bytes_per_logit=activation_bytes[1],
            facts=dict(facts or {}),
        )
        errors = tuple(abs(model.seconds(s.work) / s.seconds - 1) for s in held_out)
        return replace(model, held_out_errors=errors)

    def to_json(self) -> str:
        """As text for a file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> CostModel:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: something else is in the file.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            problem = _problem(values)
        except ValueError as error:
            problem = f"no JSON ({error})"
        if problem:
            raise ValueError(f"calibration: expected a cost model in {path}, got {problem}")
        content: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**content)


def _problem(values: Any) -> str:
    """What keeps a file's content from being a cost model; empty where nothing does."""
    if not isinstance(values, dict):
        return f"a {type(values).__name__} where an object is expected"
    known = {f.name: f for f in fields(CostModel)}
    missing = [name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in missing if name not in values]
    if missing:
        return f"an object without {', '.join(missing)}"
    for name, value in values.items():
        if name not in known:
            return f"an unknown field {name!r}"
        several = name in ("knots", "linear_seconds", "held_out_errors")
        numbers = value if several and isinstance(value, list) else [value]
        if name == "facts":
            if not isinstance(value, dict):
                return f"facts that are no object: {value!r}"
        elif several != isinstance(value, list) or not all(_is_amount(number) for number in numbers):
            return f"{name} = {value!r}, where {'a list of amounts' if several else 'an amount'} is expected"
    knots, linear = values["knots"], values["linear_seconds"]
    if len(knots) != len(linear) or len(knots) < 2 or any(a >= b for a, b in pairwise(knots)):
        return f"{len(linear)} linear_seconds for knots {knots}, which are expected to ascend and to be two at least"
    return ""


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _terms(work: StepWork) -> list[float]:
    return [float(work.prefill_pairs), float(work.num_keys), float(work.num_logits), float(work.num_requests)]


def _hats(knots: Sequence[int], tokens: int) -> list[float]:
    """Weights of the knots that interpolate linearly."""
    weights = [0.0] * len(knots)
    i = min(max(bisect.bisect_right(knots, tokens) - 1, 0), len(knots) - 2)
    share = (tokens - knots[i]) / (knots[i + 1] - knots[i])
    weights[i], weights[i + 1] = 1 - share, share
    return weights


def _non_negative(numpy: Any, rows: Any, target: Any) -> Any:
    """Least squares with all unknowns ≥ 0 (Lawson and Hanson, 1974, chapter 23)."""
    count = rows.shape[1]
    scales = numpy.linalg.norm(rows, axis=0)
    scales[scales == 0] = 1.0
    rows = rows / scales
    x = numpy.zeros(count)
    passive = numpy.zeros(count, dtype=bool)
    for _ in range(10 * count):
        gradient = rows.T @ (target - rows @ x)
        gradient[passive] = -numpy.inf
        best = int(numpy.argmax(gradient))
        if gradient[best] <= 1e-10:
            break
        passive[best] = True
        while True:
            trial = numpy.zeros(count)
            trial[passive] = numpy.linalg.lstsq(rows[:, passive], target, rcond=None)[0]
            if (trial[passive] > 0).all():
                x = trial
                break
            shrinking = passive & (trial <= 0)
            step = (x[shrinking] / (x[shrinking] - trial[shrinking])).min()
            x = x + step * (trial - x)
            passive &= x > 1e-12
            x[~passive] = 0.0
    return x / scales
