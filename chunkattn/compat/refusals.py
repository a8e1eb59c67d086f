"""Errors about arguments of a foreign signature: by the name they have there, and never dropped in silence."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
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


@contextlib.contextmanager
def foreign_names(**names: str | None) -> Iterator[None]:
    """Lets the operators' errors blame the argument that the caller gave.

    Args:
        names: an operator's argument -> the foreign one that it was made of; None leaves the name.

    Example:
        >>> with foreign_names(seq_lens="cache_seqlens"):
        ...     raise ValueError("seq_lens: expected lengths >= 0, got -1")
        Traceback (most recent call last):
        ValueError: cache_seqlens: expected lengths >= 0, got -1
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        named, _, rest = str(error).partition(":")
        # In the sentence itself only what can't be a word of the language.
        rest = re.sub(r"\b[a-z]+_[a-z_]+\b", lambda match: names.get(match.group()) or match.group(), rest)
        message = f"{names.get(named) or named}:{rest}"
        if not rest or message == str(error):
            raise
        raise type(error)(message) from error


def _short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return repr(value)
