"""Entry point: imports the commands only when they run, and turns expected errors into one sentence."""

from __future__ import annotations

import io
import sys

from chunkattn import env
from chunkattn.extras import MissingExtraError, require


def main() -> int:
    """Runs the command line; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no "×" shows "?"
    try:
        env.read()
    except ValueError as error:
        print(f"chunkattn: {error}", file=sys.stderr)
        return 2
    try:
        require("click", extra="demo", purpose="the command chunkattn")
        from chunkattn.cli.commands import cli

        cli(prog_name="chunkattn", standalone_mode=True)
    except MissingExtraError as error:
        print(f"chunkattn: {error}", file=sys.stderr)
        return 1
    return 0
