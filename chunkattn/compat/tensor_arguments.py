"""Tensors of a foreign signature: each is one, and has the dimensions that are read off it."""

from __future__ import annotations

import torch
from torch import Tensor

from chunkattn import validate

ANY = ""


def check_tensors(**named: tuple[object, str]) -> None:
    """Raises for the first argument that is no dense tensor of as many dimensions as its shape has.

    Args:
        named: argument -> (value, shape such as "[T, Hq, D]", or `ANY`).

    Raises:
        TypeError: no tensor.
        ValueError: a tensor of other dimensions.

    Example:
        >>> check_tensors(k=(None, "[Tk, Hkv, D]"))
        Traceback (most recent call last):
        TypeError: k: expected a tensor, got NoneType
    """
    for argument, (value, shape) in named.items():
        if not isinstance(value, Tensor):
            validate.tensors(**{argument: value})
        elif value.layout != torch.strided or value.is_nested:
            validate.dense(**{argument: value})
        elif shape and value.dim() != shape.count(",") + 1:
            raise ValueError(f"{argument}: expected {shape}, got shape {list(value.shape)}")


def check_optional_tensors(**named: tuple[object, str]) -> None:
    """`check_tensors` of those that are not None."""
    check_tensors(**{argument: (value, shape) for argument, (value, shape) in named.items() if value is not None})


def check_per_sequence(batch_size: int, **named: Tensor | None) -> None:
    """Raises ValueError for the first tensor that has not one number a sequence; None passes."""
    for argument, value in named.items():
        if value is not None and list(value.shape) != [batch_size]:
            raise ValueError(f"{argument}: expected [{batch_size}], got shape {list(value.shape)}")
