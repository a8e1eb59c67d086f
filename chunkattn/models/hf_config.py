"""Reads a Hugging Face ``config.json`` of the Llama family, and refuses by name what the decoder cannot do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chunkattn.models.config import ModelConfig, UnsupportedModelError
from chunkattn.models.rope import LENGTH_DEPENDENT_SCALINGS, STATIC_SCALINGS, RopeConfig


@dataclass(frozen=True)
class _Family:
    """What a model type fixes without saying so in its config.json."""

    qkv_bias: bool | None = None  # None: `attention_bias` decides
    output_bias: bool | None = None  # None: `attention_bias` decides
    qk_norm: bool = False
    default_window: int | None = None  # when `sliding_window` is not given
    window_needs_switch: bool = False  # `sliding_window` counts only with `use_sliding_window`


_FAMILIES = {
    "llama": _Family(),
    "mistral": _Family(qkv_bias=False, output_bias=False, default_window=4096),
    "qwen2": _Family(qkv_bias=True, output_bias=False, window_needs_switch=True),
    "qwen3": _Family(qk_norm=True, window_needs_switch=True),
}
_MOE_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")


def config_from_hf(raw: dict[str, Any], name: str) -> ModelConfig:
    """Turns the parsed ``config.json`` into a `ModelConfig`.

    Args:
        raw: the JSON object.
        name: how to call the model in messages.

    Raises:
        UnsupportedModelError: an unknown model type, mixture of experts, another activation, quantised weights,
            or a RoPE rule outside `STATIC_SCALINGS`.
        ValueError: a required key is missing.
    """
    model_type = raw.get("model_type")
    family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UnsupportedModelError(
            f"{name}: expected model_type to be one of {', '.join(_FAMILIES)}, got {model_type!r}"
        )
    _refuse_variants(raw, name)
    hidden, q_heads = _required(raw, "hidden_size", name), _required(raw, "num_attention_heads", name)
    head_dim = raw.get("head_dim") or hidden // q_heads
    attention_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        name=name,
        vocab_size=_required(raw, "vocab_size", name),
        hidden_size=hidden,
        intermediate_size=_required(raw, "intermediate_size", name),
        num_layers=_required(raw, "num_hidden_layers", name),
        num_q_heads=q_heads,
        num_kv_heads=raw.get("num_key_value_heads") or q_heads,
        head_dim=head_dim,
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        max_positions=raw.get("max_position_embeddings", 2048),
        rope=_rope(raw, head_dim, name),
        windows=_windows(raw, family, name),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )


def _required(raw: dict[str, Any], key: str, name: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int):
        raise ValueError(f"{name}: expected an integer {key!r} in config.json, got {value!r}")
    return value


def _refuse_variants(raw: dict[str, Any], name: str) -> None:
    for key in _MOE_KEYS:
        if raw.get(key):
            raise UnsupportedModelError(
                f"{name}: mixture of experts ({key}={raw[key]}) is not supported; expected a dense model"
            )
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{name}: expected hidden_act 'silu', got {activation!r}")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModelError(f"{name}: expected unquantised weights, got quant_method {method!r}")


def _windows(raw: dict[str, Any], family: _Family, name: str) -> tuple[int | None, ...]:
    layers = _required(raw, "num_hidden_layers", name)
    window = raw.get("sliding_window", family.default_window)
    if family.window_needs_switch and not raw.get("use_sliding_window", False):
        window = None
    if raw.get("model_type") == "llama" or window is None:
        return (None,) * layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = raw.get("max_window_layers", 28) if family.window_needs_switch else 0
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or len(kinds) != layers:
        raise UnsupportedModelError(
            f"{name}: expected {layers} layer_types of full_attention or sliding_attention, got {kinds}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(raw: dict[str, Any], head_dim: int, name: str) -> RopeConfig:
    # Two spellings: `rope_parameters` holds everything; the older one is `rope_theta` beside `rope_scaling`.
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    if any(isinstance(value, dict) for value in parameters.values()):
        raise UnsupportedModelError(f"{name}: one RoPE per layer type is not supported, got {parameters}")
    scaling = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    if scaling in LENGTH_DEPENDENT_SCALINGS:
        raise UnsupportedModelError(
            f"{name}: RoPE scaling {scaling!r} changes its frequencies with the sequence length, so cached keys "
            f"would be wrong; supported: {', '.join(STATIC_SCALINGS)}"
        )
    if scaling not in STATIC_SCALINGS:
        raise UnsupportedModelError(f"{name}: expected RoPE scaling {', '.join(STATIC_SCALINGS)}, got {scaling!r}")
    theta = parameters.pop("rope_theta", None) or raw.get("rope_theta", 10000.0)
    partial = parameters.pop("partial_rotary_factor", None) or raw.get("partial_rotary_factor", 1.0)
    if scaling != "default" and "factor" not in parameters:
        raise ValueError(f"{name}: expected a 'factor' for RoPE scaling {scaling!r}, got {parameters}")
    return RopeConfig(
        theta=float(theta),
        rotary_dim=int(head_dim * partial),
        scaling=scaling,
        parameters=parameters,
        max_positions=raw.get("max_position_embeddings", 2048),
    )
