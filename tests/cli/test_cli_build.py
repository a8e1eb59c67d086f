"""`chunkattn build`: the list of variants, what it refuses, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkattn.build import builder, store
from chunkattn.build.variants import Variant, all_variants
from chunkattn.cli.commands import cli


def run(*arguments: str):
    return CliRunner().invoke(cli, ["build", *arguments])


def test_the_list_names_every_variant_and_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "build", lambda *args, **kwargs: pytest.fail("built something"))
    result = run("--list")
    assert result.exit_code == 0, result.output
    for variant in all_variants():
        assert variant.name in result.output


def test_the_columns_of_the_list_are_straight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find(variant: Variant, folders: object = None) -> store.Library | None:
        if variant.kernel == "plan":
            return None
        manifest = {"bytes": 2**21 if variant.kernel == "pages" else 2**10}
        kernels = {"kernels": {"a": {"registers": 255 if variant.kernel == "pages" else 32}}}
        return store.Library(tmp_path / f"{variant.name}.so", "cache", manifest | kernels)

    monkeypatch.setattr(store, "find", find)
    monkeypatch.setattr(builder, "unbuildable_reason", lambda variant: None)
    lines = run("--list").output.splitlines()
    assert max(len(variant.name) for variant in all_variants()) > 40
    for columns in (("cache ", "missing "), (" KB",), (" registers",), (str(tmp_path),)):
        places = {line.index(word) for word in columns for line in lines if word in line}
        assert len(places) == 1, columns


def test_json_says_where_a_variant_is_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "find", lambda variant, folders=None: None)
    monkeypatch.setattr(builder, "unbuildable_reason", lambda variant: "nvcc was not found")
    result = run("--list", "--json", "--arch", "80", "--variant", "plan-*", "--variant", "pages-sm80")
    rows = json.loads(result.output)["variants"]
    assert {(row["name"], row["place"], row["reason"]) for row in rows} == {
        ("pages-sm80", None, "nvcc was not found"),
        ("plan-sm80", None, "nvcc was not found"),
    }


def test_what_was_built_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    def build(variants, output):
        assert output == tmp_path
        manifest = {"bytes": 2048, "seconds": 1.5, "kernels": {"a": {"registers": 30}, "b": {"registers": 96}}}
        return {v.name: store.Library(tmp_path / f"{v.name}.so", "cache", manifest) for v in variants}

    monkeypatch.setattr(builder, "build", build)
    result = run("--json", "--arch", "90a", "--variant", "plan*", "--output", str(tmp_path))
    (row,) = json.loads(result.output)["variants"]
    assert (row["name"], row["registers"], row["bytes"]) == ("plan-sm90a", 96, 2048)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "80,75"), "--arch: expected some of 80, 90a, got '75'"),
        (
            ("--variant", "nothing-*"),
            f"Error: --variant: expected the name of a variant (one of {len(all_variants())}, which chunkattn build "
            "--list names), got 'nothing-*'\n",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    result = run("--list", *arguments)
    assert result.exit_code == 1
    assert message in result.output


def test_a_failed_build_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(variants, output):
        raise builder.BuildError("plan-sm80 cannot be built: nvcc was not found")

    monkeypatch.setattr(builder, "build", build)
    result = run("--variant", "plan-sm80")
    assert result.exit_code == 1
    assert result.output == "Error: plan-sm80 cannot be built: nvcc was not found\n"
