"""Model presets: the attention of each kind of layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

from chunkattn.bench.case import Heads
from chunkattn.extras import require


@dataclass(frozen=True)
class LayerKind:
    """Layers of a model that attend alike.

    Attributes:
        count: how many the model has.
        heads: their attention.
    """

    count: int
    heads: Heads


@functools.cache
def presets() -> dict[str, tuple[LayerKind, ...]]:
    """Every preset by name."""
    yaml = require("yaml", extra="bench", purpose="reading benchmark cases")
    text = resources.files("chunkattn.bench").joinpath("models.yaml").read_text(encoding="utf-8")
    return {name: tuple(_layer(layer) for layer in model["layers"]) for name, model in yaml.safe_load(text).items()}


def layers(name: str) -> tuple[LayerKind, ...]:
    """The kinds of layers of a preset.

    Raises:
        ValueError: no preset has that name.
    """
    if name not in presets():
        raise ValueError(f"model: expected one of {', '.join(presets())}, got {name!r}")
    return presets()[name]


def _layer(data: dict[str, Any]) -> LayerKind:
    facts = dict(data)
    count = facts.pop("count")
    facts.setdefault("head_dim_v", facts["head_dim"])
    facts["window"] = tuple(facts.get("window", (-1, -1)))
    return LayerKind(count, Heads(**facts))
