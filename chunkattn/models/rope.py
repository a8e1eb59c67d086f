"""Rotary position embedding: cos/sin tables for every scaling rule that does not depend on the batch.

Sources: RoFormer (Su et al., 2021); position interpolation, "linear" (Chen et al., 2023); YaRN
(Peng et al., 2023, §3); the Llama 3.1 rule ("llama3"), which divides low frequencies by a factor, keeps high
ones and blends between.

Rules whose frequencies change with the length of the running sequence ("dynamic", "longrope") are refused:
keys already in the cache would carry the old frequencies, so the result would depend on how a prompt was cut
into chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

STATIC_SCALINGS = ("default", "linear", "llama3", "yarn")
LENGTH_DEPENDENT_SCALINGS = ("dynamic", "longrope", "su")


@dataclass(frozen=True)
class RopeConfig:
    """One rotary embedding.

    Attributes:
        theta: base of the geometric frequencies.
        rotary_dim: leading dims of a head that are rotated; even.
        interleaved: pairs are (2i, 2i+1) if true, (i, i + rotary_dim/2) if not.
        scaling: one of ``STATIC_SCALINGS``.
        parameters: the scaling's own numbers under their Hugging Face names.
        max_positions: the length the scaled model is meant for; YaRN's default for its original length.
    """

    theta: float
    rotary_dim: int
    interleaved: bool = False
    scaling: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict)
    max_positions: int = 0

    def __post_init__(self) -> None:
        if self.scaling not in STATIC_SCALINGS:
            raise ValueError(f"scaling: expected one of {', '.join(STATIC_SCALINGS)}, got {self.scaling!r}")
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError(f"rotary_dim: expected an even number of at least 2, got {self.rotary_dim}")


def inverse_frequencies(config: RopeConfig) -> tuple[Tensor, float]:
    """Radians per position of each pair, and the factor that cos and sin are multiplied by.

    Returns:
        [rotary_dim / 2] float64 frequencies; 1.0 except for YaRN.
    """
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float64) / config.rotary_dim
    frequencies = config.theta**-exponents
    if config.scaling == "linear":
        return frequencies / config.parameters["factor"], 1.0
    if config.scaling == "llama3":
        return _llama3(frequencies, config.parameters), 1.0
    if config.scaling == "yarn":
        return _yarn(frequencies, config)
    return frequencies, 1.0


def rope_tables(config: RopeConfig, num_positions: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles.

    Angles are formed in float64: at position 100,000 a float32 product is already off by 0.004 rad.

    Returns:
        Two [num_positions, rotary_dim / 2] float32 tensors.
    """
    frequencies, factor = inverse_frequencies(config)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
    return (angles.cos() * factor).float().to(device), (angles.sin() * factor).float().to(device)


def _llama3(frequencies: Tensor, parameters: dict[str, Any]) -> Tensor:
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    # 0 where a pair turns less than `low` times over the original context, 1 where more than `high` times.
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    slowed: Tensor = frequencies / parameters["factor"]
    return torch.lerp(slowed, frequencies, keep)


def _yarn(frequencies: Tensor, config: RopeConfig) -> tuple[Tensor, float]:
    parameters, dim = config.parameters, config.rotary_dim
    factor = parameters["factor"]
    original = parameters.get("original_max_position_embeddings") or config.max_positions

    def pair_turning(turns: float) -> float:
        """The (fractional) pair index that turns this often over the original context."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    first = pair_turning(parameters.get("beta_fast") or 32)
    last = pair_turning(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = max(last - first, 0.001)
    interpolate = ((torch.arange(dim // 2, dtype=torch.float64) - first) / width).clamp(0, 1)
    return frequencies * (1 - interpolate + interpolate / factor), _yarn_attention_factor(parameters)


def _yarn_attention_factor(parameters: dict[str, Any]) -> float:
    """The logits' temperature, applied to q and k alike through cos and sin (YaRN §3.4)."""
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)
    factor = parameters["factor"]

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
