"""Checks on options: what is no tensor."""

from __future__ import annotations

from typing import NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

from chunkattn.types import Plan
from chunkattn.validate.sentences import bad
from chunkattn.validate.tensor import dense

MAX_SPLITS = 1024
MAX_COUNT = MAX_WINDOW = 2**31 - 1
_TYPE_NAMES = {
    Tensor: "a tensor",
    type(None): "None",
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a name",
    torch.dtype: "a torch.dtype",
}
_WINDOW_RANGE = f"two integers from -1 (unlimited) to {MAX_WINDOW}"


def flags(**named: object) -> None:
    """These arguments must be True or False; None would pass for False."""
    for arg, value in named.items():
        if not isinstance(value, bool):
            raise TypeError(f"{arg}: expected True or False, got {type(value).__name__}")


def window(value: object) -> tuple[int, int]:
    """A window is a pair of inclusive counts, -1 = unlimited."""
    if not (isinstance(value, tuple | list) and len(value) == 2):
        bad("window", "a pair (left, right)", repr(value))
    left, right = value
    if not (isinstance(left, int) and isinstance(right, int)) or isinstance(left, bool) or isinstance(right, bool):
        bad("window", _WINDOW_RANGE, repr(value))
    window_counts(left, right)
    return left, right


def window_counts(left: int, right: int) -> None:
    if not (-1 <= left <= MAX_WINDOW and -1 <= right <= MAX_WINDOW):
        bad("window", _WINDOW_RANGE, (left, right))


def softmax_scale(value: float | None, head_dim: int) -> float:
    """The factor of q·k; None is ``head_dim ** -0.5``. A head dim of 0, which has none, is refused with its tensor."""
    if value is None:
        return head_dim**-0.5 if head_dim else 1.0
    return value


def num_splits(value: int | None, invariant: bool) -> int:
    """The same rule for every function and operator: None or 0 is planned; a fixed count contradicts invariant mode."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SPLITS:
        bad("num_splits", f"None or 0 (planned), or an integer up to {MAX_SPLITS}", repr(value))
    if value and invariant:
        bad("num_splits", "None with invariant=True, whose split boundaries are fixed", value)
    return value


def counts(**named: object) -> None:
    """These arguments must be integers that are not negative; None passes for a maximum that is not known."""
    for arg, value in named.items():
        if value is None and arg.startswith("max_"):
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{arg}: expected an integer, got {type(value).__name__}")
        if value < 0:
            bad(arg, "an integer of at least 0", value)


def backend_name(backend: object) -> None:
    """A backend is named or None; whether one has that name is known where it is chosen."""
    if not (backend is None or isinstance(backend, str)):
        raise TypeError(f"backend: expected a name or None, got {type(backend).__name__}")


def plan_backend(plan: object, backend: str | None) -> str:
    """A plan can only be run by the backend that made it."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: expected a chunkattn.Plan, got {type(plan).__name__}")
    if backend is not None and backend != plan.backend:
        bad("backend", f"{plan.backend!r}, which made the plan", repr(backend))
    return plan.backend


def argument_types(args: NamedTuple) -> None:
    """Every field of an op's arguments must be of the type that chunkattn.args declares, and every tensor dense.

    For where the dispatcher has refused a call: its own words run over several lines.
    """
    for arg, declared in get_type_hints(type(args)).items():
        value = getattr(args, arg)
        kinds = get_args(declared) or (declared,)  # X | None, or X
        name = arg.replace("rope_", "rope.")
        if not isinstance(value, (*kinds, int) if float in kinds else kinds):
            wanted = " or ".join(_TYPE_NAMES.get(kind, str(kind)) for kind in kinds)
            raise TypeError(f"{name}: expected {wanted}, got {type(value).__name__}")
        if float in kinds and isinstance(value, int) and value.bit_length() > 1023:
            bad(name, "a number that fp64 holds", f"an integer of {value.bit_length()} bits")
        dense(**{name: value})
