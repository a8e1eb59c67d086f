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
from chunkattn.bench.case import BenchCase
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
        text = resources.files("chunkattn.bench.cases").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8")
    else:
        raise ValueError(f"cases: expected a YAML file or one of {', '.join(names())}, got {name!r}")
    data = yaml.safe_load(text)
    if not isinstance(data, dict) or not (data.get("cases") or data.get("grids")):
        raise ValueError(f"cases: expected {name} to hold cases or grids")
    stem = Path(name).stem
    return Suite(stem, str(data.get("about", "")), tuple(_expand(stem, data)))


_Batch = tuple[str, list[list[int]], tuple[tuple[str, float], ...]]


def _expand(suite: str, data: dict[str, Any]) -> Iterator[BenchCase]:
    batches: list[_Batch] = [(name, groups, ()) for name, groups in (data.get("cases") or {}).items()]
    batches += [batch for grid in data.get("grids") or [] for batch in _grid(grid)]
    own_heads = data.get("case_heads") or {}
    for name, groups, axes in batches:
        kinds = [
            (model, kind, index, len(models.layers(model)))
            for model in _listed(own_heads.get(name, data.get("heads", "llama-3-8b")))
            for index, kind in enumerate(models.layers(model))
        ]
        many_models = len({model for model, *_ in kinds}) > 1
        for model, kind, index, count in kinds:
            title = name + (f"/{model}" if many_models else "") + (f"#{index + 1}" if count > 1 else "")
            for dtype, kv_dtype, page_size, layout in itertools.product(
                data.get("dtypes", ["bf16"]),
                data.get("kv_dtypes", [None]),
                data.get("page_sizes", [16]),
                data.get("layouts", ["nhd"]),
            ):
                yield BenchCase(
                    suite,
                    title,
                    tuple(_group(group) for group in groups),
                    kind.heads,
                    dtype,
                    kv_dtype or dtype,
                    page_size,
                    layout,
                    axes=axes,
                )


def _group(values: list[int]) -> tuple[int, int, int]:
    if len(values) != 3:
        raise ValueError(f"requests: expected [count, q_len, history], got {values}")
    count, q_len, history = values
    return count, q_len, history


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _grid(grid: dict[str, Any]) -> Iterator[_Batch]:
    """Batches of a grid: every combination of the letters' values, put into groups and name."""
    letters = grid["over"]
    for values in itertools.product(*letters.values()):
        point = dict(zip(letters, values, strict=True))
        groups = [[_number(x, point) for x in group] for group in grid["requests"]]
        yield grid["name"].format(**point), [g for g in groups if g[0] > 0], tuple(point.items())


def _number(value: int | str, point: dict[str, int]) -> int:
    """A number, or a letter, or a letter less one (``history - 1``)."""
    if isinstance(value, int):
        return value
    letter, _, less = (part.strip() for part in value.partition("-"))
    if letter not in point:
        raise ValueError(f"requests: expected a number or one of {', '.join(point)}, got {value!r}")
    return max(0, point[letter] - int(less or 0))
