"""Lists of named batches, one YAML file a list.

A file holds ``cases`` (name: groups of [count, q_len, history]) and ``grids`` (groups with letters, and the values
of each letter); all of them times dtypes, page sizes and the kinds of layers of a model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from chunkattn.bench import models
from chunkattn.bench.case import BenchCase, Heads
from chunkattn.extras import require


@dataclass(frozen=True)
class Suite:
    """A list of cases.

    Attributes:
        name: of the file.
        about: one sentence.
        cases: in file order.
    """

    name: str
    about: str
    cases: tuple[BenchCase, ...]


def names() -> tuple[str, ...]:
    """The suites that come with the package."""
    files = resources.files("chunkattn.bench.cases").iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def load(name: str) -> Suite:
    """A suite by name, or from a YAML file of the user's.

    Raises:
        ValueError: there is none of that name, or the file is not as described above.
    """
    yaml = require("yaml", extra="bench", purpose="reading benchmark cases")
    if name in names():
        content = resources.files("chunkattn.bench.cases").joinpath(f"{name}.yaml").read_bytes()
    elif Path(name).is_file():
        content = Path(name).read_bytes()
    else:
        raise ValueError(f"cases: expected a YAML file or one of {', '.join(names())}, got {name!r}")
    try:
        data = yaml.safe_load(content.decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"cases: expected YAML in {name}, got {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or not (data.get("cases") or data.get("grids")):
        raise ValueError(f"cases: expected {name} to hold cases or grids")
    stem = Path(name).stem
    try:
        found = tuple(_expand(stem, data))
    except (AttributeError, KeyError, TypeError) as error:  # something is missing, or of another kind
        wanted = f"{name} to be built like the lists that come with the package"
        raise ValueError(f"cases: expected {wanted}, got {type(error).__name__} {error}") from None
    return Suite(stem, str(data.get("about", "")), found)


@dataclass(frozen=True)
class _Batch:
    """A batch before it is multiplied by dtypes, page sizes and layers."""

    name: str
    groups: list[list[int]]
    axes: tuple[tuple[str, float], ...] = ()
    heads: Heads | None = None


def _expand(suite: str, data: dict[str, Any]) -> Iterator[BenchCase]:
    batches = [_Batch(name, groups) for name, groups in (data.get("cases") or {}).items()]
    batches += [batch for grid in data.get("grids") or [] for batch in _grid(grid)]
    own_heads = data.get("case_heads") or {}
    for batch in batches:
        for title, heads in _layers(batch, own_heads.get(batch.name, data.get("heads", "llama-3-8b"))):
            for dtype, kv_dtype, page_size, layout in itertools.product(
                data.get("dtypes", ["bf16"]),
                data.get("kv_dtypes", [None]),
                data.get("page_sizes", [16]),
                data.get("layouts", ["nhd"]),
            ):
                yield BenchCase(
                    suite,
                    title,
                    tuple(_group(group) for group in batch.groups),
                    heads,
                    dtype,
                    kv_dtype or dtype,
                    page_size,
                    layout,
                    axes=batch.axes,
                )


def _layers(batch: _Batch, chosen: str | list[str]) -> Iterator[tuple[str, Heads]]:
    """(title, heads) of every kind of layer that a batch is for."""
    if batch.heads is not None:
        yield batch.name, batch.heads
        return
    names = [chosen] if isinstance(chosen, str) else chosen
    for model in names:
        kinds = models.layers(model)
        for index, kind in enumerate(kinds):
            title = batch.name + (f"/{model}" if len(names) > 1 else "")
            yield title + (f"#{index + 1}" if len(kinds) > 1 else ""), kind.heads


def _group(values: list[int]) -> tuple[int, int, int]:
    if len(values) != 3:
        raise ValueError(f"requests: expected [count, q_len, history], got {values}")
    count, q_len, history = values
    return count, q_len, history


def _grid(grid: dict[str, Any]) -> Iterator[_Batch]:
    """Batches of a grid: every combination of the letters' values, put into groups, name and heads."""
    letters = grid["over"]
    for values in itertools.product(*letters.values()):
        point = dict(zip(letters, values, strict=True))
        groups = [[_number(x, point) for x in group] for group in grid["requests"]]
        heads: dict[str, Any] = {name: _number(x, point) for name, x in (grid.get("heads") or {}).items()}
        yield _Batch(grid["name"].format(**point), groups, tuple(point.items()), Heads(**heads) if heads else None)


def _number(value: int | str, point: dict[str, int]) -> int:
    """A number, a letter, a letter less a number (``history - 1``) or a number times a letter (``4 * heads``)."""
    if isinstance(value, int):
        return value
    factor, star, rest = value.partition("*")
    letter, _, less = (part.strip() for part in (rest if star else value).partition("-"))
    if letter not in point:
        raise ValueError(f"requests: expected a number or one of {', '.join(point)}, got {value!r}")
    return max(0, (int(factor) if star else 1) * point[letter] - int(less or 0))
