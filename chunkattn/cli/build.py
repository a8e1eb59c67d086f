"""`chunkattn build`: GPU kernel libraries ahead of time, for wheels, images and machines without a compiler."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from chunkattn.build import builder, store
from chunkattn.build.variants import ARCHITECTURES, Variant, all_variants
from chunkattn.cli.one_sentence import one_sentence


@click.command()
@click.option(
    "--arch",
    default=",".join(ARCHITECTURES),
    show_default=True,
    metavar="LIST",
    help="Architectures, comma-separated: 80 runs on sm_80 and newer, 90a on sm_90 with its own instructions.",
)
@click.option(
    "--variant",
    "patterns",
    multiple=True,
    metavar="NAME",
    help="Only variants of this name; may hold * and be given several times.  [default: all]",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to put the libraries.  [default: the cache directory]",
)
@click.option("--list", "as_list", is_flag=True, help="Say what is there and what is not; build nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on standard output.")
def build(arch: str, patterns: tuple[str, ...], output: Path | None, as_list: bool, as_json: bool) -> None:
    """Builds the GPU kernels that csrc/variants.toml lists, each once; needs nvcc.

    A wheel or image that should need no compiler takes the libraries along: --output chunkattn/_kernels in a checkout
    puts them where the package looks first.
    """
    with one_sentence():
        variants = chosen(arch, patterns)
        try:
            libraries = {} if as_list else builder.build(variants, output=output)
        except builder.BuildError as error:
            raise click.ClickException(str(error)) from error
        rows = [described(variant, libraries.get(variant.name) or _find(variant, output)) for variant in variants]
        width = max((len(row["name"]) for row in rows), default=0)
        lines = (line_of(row, width) for row in rows)
        click.echo(json.dumps({"variants": rows}, indent=1) if as_json else "\n".join(lines))


def _find(variant: Variant, output: Path | None) -> store.Library | None:
    return store.find(variant, None if output is None else (("cache", output),))


def chosen(arch: str, patterns: Sequence[str]) -> tuple[Variant, ...]:
    """The listed variants of these architectures whose names match one of the patterns.

    Raises:
        click.ClickException: an unknown architecture, or a pattern that matches nothing.
    """
    wanted = [name.strip() for name in arch.split(",") if name.strip()]
    for name in wanted:
        if name not in ARCHITECTURES:
            raise click.ClickException(f"--arch: expected some of {', '.join(ARCHITECTURES)}, got {name!r}")
    listed = all_variants()
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(variant.name, pattern) for variant in listed):
            known = f"one of {len(listed)}, which chunkattn build --list names" if listed else "there is none"
            raise click.ClickException(f"--variant: expected the name of a variant ({known}), got {pattern!r}")
    return tuple(
        variant
        for variant in listed
        if variant.arch in wanted
        and (not patterns or any(fnmatch.fnmatchcase(variant.name, pattern) for pattern in patterns))
    )


def described(variant: Variant, library: store.Library | None) -> dict[str, Any]:
    """What there is to say about a variant: where it is, or why it cannot be built."""
    row: dict[str, Any] = {"name": variant.name, "kernel": variant.kernel, "arch": variant.arch}
    if library is None:
        return {**row, "place": None, "reason": builder.unbuildable_reason(variant)}
    kernels = library.manifest.get("kernels", {}).values()
    return {
        **row,
        "place": library.place,
        "path": str(library.path),
        "bytes": library.manifest["bytes"],
        "seconds": library.manifest.get("seconds"),
        "registers": max((kernel["registers"] for kernel in kernels), default=0),
    }


def line_of(row: dict[str, Any], width: int) -> str:
    """One line of the list; `width` of the longest name."""
    if row["place"] is None:
        return f"{row['name']:<{width}}  missing  {row['reason'] or 'built on first use'}"
    size = f"{row['bytes'] / 1024:.0f} KB"
    return f"{row['name']:<{width}}  {row['place']:<8} {size:>8}  {row['registers']:>3} registers  {row['path']}"
