"""What config.json means, and which models are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from checkpoint import TINY_LLAMA

from chunkattn.models.config import UnsupportedModelError
from chunkattn.models.hf_config import config_from_hf
from chunkattn.models.rope import RopeConfig, inverse_frequencies, rope_tables


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "mixtral"},
            "expected model_type to be one of llama, mistral, qwen2, qwen3, got 'mixtral'",
        ),
        ({"model_type": None}, "expected model_type to be one of .*, got None"),
        ({"num_local_experts": 8}, r"mixture of experts \(num_local_experts=8\) is not supported"),
        ({"hidden_act": "gelu"}, "expected hidden_act 'silu', got 'gelu'"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "expected unquantised weights, got quant_method 'gptq'",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "RoPE scaling 'dynamic' changes its frequencies",
        ),
        ({"rope_scaling": {"rope_type": "longrope"}}, "RoPE scaling 'longrope' changes its frequencies"),
        (
            {"rope_scaling": {"rope_type": "ufo"}},
            "expected RoPE scaling default, linear, llama3, yarn, got 'ufo'",
        ),
        ({"rope_parameters": {"full_attention": {}}}, "one RoPE per layer type is not supported"),
        ({"num_key_value_heads": 3}, "query heads to be a multiple of the KV heads, got 4 and 3"),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["mamba"] * 2,
            },
            "expected 2 layer_types of full_attention or sliding_attention",
        ),
    ],
)
def test_refuses_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"^tiny: .*{message}"):
        config_from_hf(TINY_LLAMA | change, "tiny")


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_names_a_missing_key(key: str) -> None:
    raw = {k: v for k, v in TINY_LLAMA.items() if k != key}
    with pytest.raises(ValueError, match=f"tiny: expected an integer '{key}' in config.json, got None"):
        config_from_hf(raw, "tiny")


def test_scaling_without_a_factor_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a 'factor' for RoPE scaling 'linear'"):
        config_from_hf(TINY_LLAMA | {"rope_scaling": {"type": "linear"}}, "tiny")


def test_both_spellings_of_rope_mean_the_same() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = TINY_LLAMA | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}}
    new = TINY_LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}}
    assert config_from_hf(old, "tiny") == config_from_hf(new, "tiny")
    assert config_from_hf(new, "tiny").rope.theta == 5e5


def test_defaults_of_families() -> None:
    mistral = config_from_hf(TINY_LLAMA | {"model_type": "mistral"}, "tiny")
    assert mistral.windows == (4096, 4096)
    qwen = config_from_hf(TINY_LLAMA | {"model_type": "qwen2", "sliding_window": 16}, "tiny")
    assert qwen.windows == (None, None)  # the switch is off
    assert qwen.qkv_bias
    assert not qwen.output_bias
    llama = config_from_hf(TINY_LLAMA | {"partial_rotary_factor": 0.5}, "tiny")
    assert (llama.head_dim, llama.rope.rotary_dim) == (8, 4)


def test_tables_hold_cos_and_sin_of_the_angle() -> None:
    cos, sin = rope_tables(RopeConfig(theta=100.0, rotary_dim=4), 50, "cpu")
    assert cos.shape == sin.shape == (50, 2)
    assert cos[7, 1].item() == pytest.approx(math.cos(7 * 100.0**-0.5), abs=1e-7)
    assert sin[49, 0].item() == pytest.approx(math.sin(49.0), abs=1e-7)


def test_llama3_keeps_fast_pairs_and_slows_slow_ones() -> None:
    parameters = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    plain, _ = inverse_frequencies(RopeConfig(theta=10000.0, rotary_dim=32))
    scaled, factor = inverse_frequencies(RopeConfig(10000.0, 32, scaling="llama3", parameters=parameters))
    turns = plain * 64 / (2 * math.pi)
    ratio = plain / scaled
    assert factor == 1.0
    torch.testing.assert_close(ratio[turns > 4], torch.ones_like(ratio[turns > 4]))
    torch.testing.assert_close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 8.0))
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between)
    assert ((between > 1) & (between < 8)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rotary_dim": 5}, "rotary_dim: expected an even number of at least 2, got 5"),
        ({"rotary_dim": 8, "scaling": "dynamic"}, "scaling: expected one of default, linear"),
    ],
)
def test_rope_config_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeConfig(theta=10000.0, **arguments)
