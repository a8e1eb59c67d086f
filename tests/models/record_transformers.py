"""Records what `transformers` computes for small random models: run by hand where it is installed.

    python tests/models/record_transformers.py

Writes data/transformers.json: for every case the config.json that transformers saves, the tensors' shapes, and the
logits of some rows. Weights and tokens come from the formulas of checkpoint.py.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
import transformers
from checkpoint import formula_tokens, formula_weight

BASE = {
    "vocab_size": 29,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NUM_TOKENS = 90
ROWS = [0, 40, 89]


def rope(rope_type: str, **parameters: float) -> dict[str, object]:
    return {"head_dim": 32, "rope_parameters": {"rope_theta": 10000.0, "rope_type": rope_type, **parameters}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    "llama": ("Llama", {}),
    "llama tied biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama head_dim 16": ("Llama", {"head_dim": 16}),
    "llama multi-head": ("Llama", {"num_key_value_heads": 6}),
    "llama linear": ("Llama", rope("linear", factor=4.0)),
    "llama llama3": (
        "Llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama yarn": ("Llama", rope("yarn", **YARN)),
    "llama yarn tuned": (
        "Llama",
        rope("yarn", **YARN, mscale=0.7, mscale_all_dim=1.3, beta_fast=16, beta_slow=2, truncate=False),
    ),
    "mistral window 7": ("Mistral", {"sliding_window": 7}),
    "mistral no window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2 window 9": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3 tied": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3 window 9": (
        "Qwen3",
        {"head_dim": 24, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    ),
}


def record(family: str, options: dict[str, object]) -> dict[str, object]:
    config = getattr(transformers, f"{family}Config")(**(BASE | options))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(formula_weight(name, list(parameter.shape)))
        logits = model(formula_tokens(NUM_TOKENS, BASE["vocab_size"])[None]).logits[0, ROWS]
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        saved = json.loads((Path(directory) / "config.json").read_text())
    return {
        "config": saved,
        "shapes": {name: list(parameter.shape) for name, parameter in model.named_parameters()},
        "logits": [[round(x, 7) for x in row] for row in logits.tolist()],
    }


if __name__ == "__main__":
    result = {
        "transformers": transformers.__version__,
        "num_tokens": NUM_TOKENS,
        "rows": ROWS,
        "cases": {name: record(family, options) for name, (family, options) in CASES.items()},
    }
    (Path(__file__).parent / "data" / "transformers.json").write_text(json.dumps(result, indent=None) + "\n")
