"""A random-weight model directory that the demo can run in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
WORDS = [f"word{i}" for i in range(126)]


def write_model(directory: Path) -> None:
    """Weights from a seed, and a word-level tokenizer over `WORDS`."""
    generator = torch.Generator().manual_seed(3)
    hidden, ffn, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 16
    shapes = {"model.embed_tokens.weight": (128, hidden), "model.norm.weight": (hidden,)}
    for i in range(CONFIG["num_hidden_layers"]):
        base = f"model.layers.{i}"
        shapes |= {f"{base}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        shapes |= {f"{base}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        shapes |= {f"{base}.self_attn.{name}_proj.weight": (kv, hidden) for name in "kv"}
        shapes |= {f"{base}.mlp.{name}_proj.weight": (ffn, hidden) for name in ("gate", "up")}
        shapes[f"{base}.mlp.down_proj.weight"] = (hidden, ffn)
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<end>", *WORDS])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.save(str(directory / "tokenizer.json"))


def document(num_words: int) -> str:
    """A text of so many words."""
    return " ".join(WORDS[(i * i * 5 + i) % len(WORDS)] for i in range(num_words))
