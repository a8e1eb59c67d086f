"""The one rule for "equal enough", and bitwise comparison where equal means equal.

For every (token, head) the relative L2 error of the output row against the float64 oracle must not exceed
half an epsilon of the output's dtype; ``lse`` must be within 1e-5 (relative above 1); non-finite values must
stand in the same places. Absolute tolerances and cosine similarity are not used: both let wrong masks pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

LSE_TOLERANCE = 1e-5
"""Allowed error of a log-sum-exp, times max(1, |lse|)."""

FLOAT32_ROUNDINGS = 48
"""float32 has no wider type to accumulate in, so a float32 row may carry this many half-epsilons where scores are of
deviation 1, and more in proportion.

A rounding of 2^-24 enters with every product, exponential and partial sum of a row, and a score of magnitude s carries
s of them into its weight. Over 145 random float32 cases the C++ kernels need up to 25 a deviation (32 without vector
instructions) and plain float32 PyTorch 17.
"""

MOST_FLOAT32_ROUNDINGS = 128
"""No float32 row may carry more, whatever its scores."""


def row_budget(dtype: torch.dtype, score_deviation: float | None = None) -> float:
    """Largest relative L2 error of an output row of this dtype.

    Args:
        dtype: of the row.
        score_deviation: standard deviation of the scaled scores before soft-cap and bias, 1 for normal queries and
            keys at the default scale; only float32 depends on it. None where it is not known.
    """
    half_epsilon = torch.finfo(dtype).eps / 2
    if dtype != torch.float32:
        return half_epsilon
    if score_deviation is None:
        return half_epsilon * MOST_FLOAT32_ROUNDINGS
    return half_epsilon * min(MOST_FLOAT32_ROUNDINGS, FLOAT32_ROUNDINGS * max(1.0, score_deviation))


def row_errors(actual: Tensor, expected: Tensor) -> Tensor:
    """Relative L2 error of each row, float64 [...]; rows expected to be zero give 0 if zero, else inf.

    Args:
        actual: [..., D], finite where ``expected`` is.
        expected: [..., D].
    """
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    # Scaling by the largest entry first keeps squares of tiny or huge rows in range.
    size = expected.abs().amax(-1, keepdim=True)
    unit = torch.where(size == 0, 1.0, size)
    error = ((actual - expected) / unit).norm(dim=-1)
    norm = (expected / unit).norm(dim=-1)
    relative = error / torch.where(norm == 0, 1.0, norm)
    return torch.where(norm == 0, torch.where(error == 0, 0.0, torch.inf), relative)


def assert_same_non_finite(actual: Tensor, expected: Tensor, name: str = "out") -> None:
    """Fails unless NaN, +inf and -inf stand in exactly the same places."""
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    if actual.shape != expected.shape:
        raise AssertionError(f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    for label, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        wrong = test(actual) != test(expected)
        if wrong.any():
            index = tuple(int(i) for i in wrong.nonzero()[0])
            raise AssertionError(
                f"{name}: {int(wrong.sum())} of {wrong.numel()} places differ in {label}; "
                f"first at {index}: got {actual[index].item()}, expected {expected[index].item()}"
            )


def assert_rows_close(
    actual: Tensor, expected: Tensor, *, name: str = "out", budget: float | None = None, context: str = ""
) -> None:
    """Checks every row ``[..., D]`` of ``actual`` against the oracle by the row-error rule.

    Args:
        actual: the operator's result; its dtype sets the budget.
        expected: float64 of the same shape.
        name: what to call it in the message.
        budget: replaces :func:`row_budget`, for operations with a stated budget of their own.
        context: put in front of the message, e.g. the case's name.

    Raises:
        AssertionError: naming the worst (token, head), its error and both rows' first entries.
    """
    assert_same_non_finite(actual, expected, f"{context}{name}")
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    if actual.numel() == 0:
        return
    limit = row_budget(actual.dtype) if budget is None else budget
    finite = torch.isfinite(expected)
    errors = row_errors(torch.where(finite, actual.double(), 0.0), torch.where(finite, expected.double(), 0.0))
    bad = ~(errors <= limit)
    if not bad.any():
        return
    worst = tuple(int(i) for i in (errors == errors.max()).nonzero()[0])
    place = f"token {worst[0]} head {worst[1]}" if len(worst) == 2 else f"row {worst}"
    raise AssertionError(
        f"{context}{name}: {int(bad.sum())} of {errors.numel()} rows exceed the row error {limit:.3g}; worst is "
        f"{place} with {float(errors[worst]):.3g}: got {_head(actual[worst])}, expected {_head(expected[worst])}"
    )


def assert_lse_close(actual: Tensor, expected: Tensor, *, name: str = "lse", context: str = "") -> None:
    """Checks ``lse`` [T, Hq] fp32 against the oracle: |error| <= 1e-5 * max(1, |lse|), same infinities."""
    if actual.dtype != torch.float32:
        raise AssertionError(f"{context}{name}: dtype {actual.dtype}, expected torch.float32")
    assert_same_non_finite(actual, expected, f"{context}{name}")
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    if actual.numel() == 0:
        return
    finite = torch.isfinite(expected)
    reference = torch.where(finite, expected, 0.0)
    excess = (torch.where(finite, actual, 0.0) - reference).abs() / reference.abs().clamp(min=1.0)
    if not (excess <= LSE_TOLERANCE).all():
        worst = tuple(int(i) for i in (excess == excess.max()).nonzero()[0])
        raise AssertionError(
            f"{context}{name}: {int((excess > LSE_TOLERANCE).sum())} of {excess.numel()} entries are off by more "
            f"than {LSE_TOLERANCE:g}; worst is (token, head) {worst}: got {actual[worst].item():.7g}, "
            f"expected {expected[worst].item():.7g}"
        )


def assert_state_close(
    actual: tuple[Tensor, Tensor],
    expected: tuple[Tensor, Tensor],
    *,
    budget: float | None = None,
    context: str = "",
) -> None:
    """Checks (out [T, Hq, Dv], lse [T, Hq]) against the oracle's pair."""
    assert_lse_close(actual[1], expected[1], context=context)
    assert_rows_close(actual[0], expected[0], budget=budget, context=context)


def assert_bitwise_equal(actual: Tensor, expected: Tensor, *, name: str = "out", context: str = "") -> None:
    """Checks that two tensors hold the same bits (two NaN of equal bits are equal, 0 and -0 are not)."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(
            f"{context}{name}: {actual.dtype}{tuple(actual.shape)} against {expected.dtype}{tuple(expected.shape)}"
        )
    different = _bits(actual) != _bits(expected)
    if different.any():
        index = tuple(int(i) for i in different.nonzero()[0])
        raise AssertionError(
            f"{context}{name}: {int(different.sum())} of {different.numel()} values differ in their bits; first at "
            f"{index}: {actual[index].item()!r} against {expected[index].item()!r}"
        )


def _bits(tensor: Tensor) -> Tensor:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().cpu().contiguous().view(integer)


def _head(row: Tensor, count: int = 4) -> str:
    values = ", ".join(f"{float(x):.6g}" for x in row.flatten()[:count])
    return f"[{values}{', …' if row.numel() > count else ''}]"
