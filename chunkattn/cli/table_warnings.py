"""Warnings of tables of measured settings, as a person reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click

from chunkattn.planning.tuning_table import TuningTableWarning


@contextmanager
def plain_table_warnings() -> Iterator[None]:
    """Inside it each is one line on stderr, once, without Python's file and source line."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", TuningTableWarning)
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: object) -> None:
            if issubclass(category, TuningTableWarning):
                click.echo(f"Warning: {message}", err=True)
            else:
                shown(message, category, *where)  # type: ignore[arg-type]

        warnings.showwarning = show  # type: ignore[assignment]
        yield
