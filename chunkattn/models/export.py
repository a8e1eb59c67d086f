"""Writes a loaded model as a Hugging Face directory, so that other engines can load it without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chunkattn.extras import require
from chunkattn.models.config import ModelConfig, UnsupportedModelError
from chunkattn.models.load import Model


def export_model(model: Model, directory: Path) -> list[Path]:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    The weights are written as they are, in the model's dtype: those of a quantised GGUF file dequantised. Rotary pairs
    become Hugging Face's (halves of a head), whatever they were in the source, so that a reload gives the same tokens.

    Args:
        model: from `load_model`.
        directory: made if it is not there; files of these names are replaced.

    Returns:
        The files written.

    Raises:
        UnsupportedModelError: a variant that ``LlamaForCausalLM`` does not have.
        OSError: a file cannot be written.
    """
    config, tokenizer = model.config, model.tokenizer
    raw = _llama_config(config, model.decoder.dtype)
    safetensors = require("safetensors.torch", extra="demo", purpose="writing safetensors weights")
    directory.mkdir(parents=True, exist_ok=True)
    files = {name: directory / name for name in ("config.json", "generation_config.json", "tokenizer_config.json")}
    eos: list[int] = sorted(tokenizer.eos_token_ids)
    _write_json(files["config.json"], {**raw, "eos_token_id": eos[0] if len(eos) == 1 else eos or None})
    _write_json(files["generation_config.json"], {"eos_token_id": eos or None, "do_sample": False})
    files["model.safetensors"] = directory / "model.safetensors"
    try:
        safetensors.save_file(_hf_tensors(model), str(files["model.safetensors"]), metadata={"format": "pt"})
    except require("safetensors", extra="demo", purpose="writing safetensors weights").SafetensorError as error:
        raise OSError(f"{files['model.safetensors']}: {error}") from error  # a full disk, a folder that is read-only
    files["tokenizer.json"] = directory / "tokenizer.json"
    tokenizer.save(files["tokenizer.json"])
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "clean_up_tokenization_spaces": False,
    }
    if eos:
        settings["eos_token"] = tokenizer.token_of(eos[0])
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template.source
    _write_json(files["tokenizer_config.json"], settings)
    return list(files.values())


def _llama_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The config.json of ``LlamaForCausalLM``."""
    refused = {
        "q and k normalisation": config.qk_norm,
        "sliding windows": any(window is not None for window in config.windows),
        "biases on q, k, v but not on the output (or the reverse)": config.qkv_bias != config.output_bias,
        "rotation of a part of a head": config.rope.rotary_dim != config.head_dim,
    }
    for variant, present in refused.items():
        if present:
            raise UnsupportedModelError(f"{config.name}: expected a Llama model, got one with {variant}")
    rope = {"rope_type": config.rope.scaling, "rope_theta": config.rope.theta, **config.rope.parameters}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_q_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_positions,
        # Both spellings of the rotary embedding: readers know one or the other.
        "rope_theta": config.rope.theta,
        "rope_parameters": rope,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_embeddings,
    }


def _hf_tensors(model: Model) -> dict[str, Tensor]:
    config, weights = model.config, model.decoder.weights
    q_rows, kv_rows = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    tensors: dict[str, Tensor | None] = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": None if config.tied_embeddings else weights.logits,
    }
    for i, layer in enumerate(weights.layers):
        base = f"model.layers.{i}"
        attention, mlp = f"{base}.self_attn", f"{base}.mlp"
        for kind, qkv, gate_up in (("weight", layer.qkv, layer.gate_up), ("bias", layer.qkv_bias, layer.gate_up_bias)):
            if qkv is not None:
                q, k, v = qkv.split((q_rows, kv_rows, kv_rows))
                tensors[f"{attention}.q_proj.{kind}"] = _half_pairs(q, config)
                tensors[f"{attention}.k_proj.{kind}"] = _half_pairs(k, config)
                tensors[f"{attention}.v_proj.{kind}"] = v
            if gate_up is not None:
                tensors[f"{mlp}.gate_proj.{kind}"], tensors[f"{mlp}.up_proj.{kind}"] = gate_up.chunk(2)
        tensors |= {
            f"{base}.input_layernorm.weight": layer.attention_norm,
            f"{base}.post_attention_layernorm.weight": layer.mlp_norm,
            f"{attention}.o_proj.weight": layer.output,
            f"{attention}.o_proj.bias": layer.output_bias,
            f"{mlp}.down_proj.weight": layer.down,
            f"{mlp}.down_proj.bias": layer.down_bias,
        }
    return {name: tensor.contiguous().cpu() for name, tensor in tensors.items() if tensor is not None}


def _half_pairs(rows: Tensor, config: ModelConfig) -> Tensor:
    """Rows [H·D, …] with each head's rotary pairs (2i, 2i+1) moved to (i, i + D/2); as they are if they are there."""
    if not config.rope.interleaved:
        return rows
    heads = rows.unflatten(0, (-1, config.head_dim // 2, 2))
    halves: Tensor = heads.transpose(1, 2).flatten(0, 2)
    return halves


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
