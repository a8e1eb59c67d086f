"""The words of a refusal: one sentence, ``{arg}: expected …, got …``."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor


def bad(arg: str, expected: object, got: object) -> NoReturn:
    raise ValueError(f"{arg}: expected {expected}, got {got}")


def bad_shape(arg: str, tensor: Tensor, expected: str) -> NoReturn:
    bad(arg, expected, f"shape {list(tensor.shape)}")


def bad_dtype(arg: str, tensor: Tensor, expected: object) -> NoReturn:
    raise TypeError(f"{arg}: expected {expected}, got {tensor.dtype}")
