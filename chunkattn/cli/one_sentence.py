"""Errors that are meant for the user, in one line and without a traceback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turns what a command may refuse, and what its files may run into, into click's one-line form."""
    try:
        yield
    except BrokenPipeError:
        raise  # click knows what to do when nobody reads on
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"{error.filename}: {reason}" if error.filename else reason) from error
    except MemoryError as error:
        raise click.ClickException(str(error) or "not enough memory") from error
    except (ValueError, ImportError, NotImplementedError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def naming(options: Mapping[str, str]) -> Iterator[None]:
    """Lets an error blame the option that an argument was made of.

    Args:
        options: argument -> option.

    Example:
        >>> with naming({"num_pages": "--pages"}):
        ...     raise ValueError("num_pages: expected an integer of at least 1, got 0")
        Traceback (most recent call last):
        ValueError: --pages: expected an integer of at least 1, got 0
    """
    try:
        yield
    except (ValueError, MemoryError, NotImplementedError) as error:
        argument, _, rest = str(error).partition(":")
        if argument not in options:
            raise
        raise type(error)(f"{options[argument]}:{rest}") from error
