"""Writes small Hugging Face directories with weights that a formula gives, the same on every machine."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch


def formula_weight(name: str, shape: list[int]) -> torch.Tensor:
    """fp32 weights that look random: a fast sine with a phase from the name."""
    count = math.prod(shape)
    phase = zlib.crc32(name.encode()) % 1000
    wave = torch.sin(torch.arange(count, dtype=torch.float64).square() * 0.37 + phase).reshape(shape)
    return (1 + 0.2 * wave if "norm" in name else 0.3 * wave).float()


def formula_tokens(count: int, vocab_size: int) -> torch.Tensor:
    """Token ids without a pattern a model could exploit."""
    return torch.tensor([(i * i * 7 + i * 3 + 1) % vocab_size for i in range(count)])


def write_checkpoint(directory: Path, config: dict[str, Any], shapes: dict[str, list[int]], *, shards: int = 1) -> None:
    """A model directory without a tokenizer."""
    from safetensors.torch import save_file

    (directory / "config.json").write_text(json.dumps(config))
    names = sorted(shapes)
    if shards == 1:
        save_file({n: formula_weight(n, shapes[n]) for n in names}, directory / "model.safetensors")
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        save_file({n: formula_weight(n, shapes[n]) for n in part}, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_tokenizer(directory: Path, words: list[str], *, template: str | None = None) -> None:
    """A word-level tokenizer whose first words are ``<unk>`` and ``<end>``."""
    import tokenizers

    vocabulary = {word: i for i, word in enumerate(["<unk>", "<end>", *words])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<end>"])
    backend.save(str(directory / "tokenizer.json"))
    settings: dict[str, Any] = {"eos_token": {"content": "<end>"}}
    if template is not None:
        settings["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def llama_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Tensor names and shapes of a plain Llama checkpoint."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = [vocab, hidden]
    for i in range(config["num_hidden_layers"]):
        base = f"model.layers.{i}"
        shapes |= {
            f"{base}.input_layernorm.weight": [hidden],
            f"{base}.self_attn.q_proj.weight": [q, hidden],
            f"{base}.self_attn.k_proj.weight": [kv, hidden],
            f"{base}.self_attn.v_proj.weight": [kv, hidden],
            f"{base}.self_attn.o_proj.weight": [hidden, q],
            f"{base}.post_attention_layernorm.weight": [hidden],
            f"{base}.mlp.gate_proj.weight": [ffn, hidden],
            f"{base}.mlp.up_proj.weight": [ffn, hidden],
            f"{base}.mlp.down_proj.weight": [hidden, ffn],
        }
    return shapes


TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
