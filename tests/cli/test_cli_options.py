"""Rules that hold for the options of every command."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from chunkattn.cli.commands import cli


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below one, and itself, by what is typed."""
    yield " ".join(names), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *names, name)


COMMANDS = dict(commands(cli))
NUMBERS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option.type, click.types.FloatParamType)
]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("width", ["40", "110"])
def test_help(name: str, width: str) -> None:
    result = CliRunner().invoke(cli, [*name.split(), "--help"], env={"COLUMNS": width})
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize(("name", "option"), NUMBERS, ids=lambda part: getattr(part, "name", part))
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999"])
def test_numbers_are_finite(name: str, option: click.Option, value: str) -> None:
    result = CliRunner().invoke(cli, [*name.split(), f"{option.opts[0]}={value}"])
    assert result.exit_code == 2
    assert f"Invalid value for '{option.opts[0]}': " in result.output


def test_there_are_numbers() -> None:
    assert {name for name, _ in NUMBERS} >= {"serve-sim", "bench run", "bench micro"}
