"""Arguments of a foreign signature that can't be honoured: refused by name, never dropped."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from chunkattn.errors import UnsupportedError


def refuse_unless(function: str, **arguments: tuple[Any, Any]) -> None:
    """Raises for the first argument that is not at its neutral value.

    Args:
        function: the foreign function, for the message.
        arguments: name -> (value, neutral value); None is always neutral.

    Raises:
        UnsupportedError: names the argument.
    """
    for name, (value, neutral) in arguments.items():
        if value is None or value is neutral:
            continue
        if isinstance(value, Tensor) or type(value) is not type(neutral) or value != neutral:
            raise UnsupportedError(
                f"{name}: expected {neutral!r} in chunkattn's {function}, got {_short(value)}; it can't be honoured"
            )


def refuse(function: str, name: str, why: str) -> UnsupportedError:
    """The error for an argument that is legal by itself and can't be honoured in this combination."""
    return UnsupportedError(f"{name}: {why} (in chunkattn's {function})")


def _short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return repr(value)
