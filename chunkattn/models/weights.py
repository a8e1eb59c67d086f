"""A decoder's weights, gathered from tensors under Hugging Face names and fused for fewer, larger products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkattn.models.config import ModelConfig

GetTensor = Callable[[str], Tensor]
"""Returns the tensor of a name; raises KeyError when the checkpoint lacks it."""


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. ``H`` hidden, ``F`` intermediate size; linear weights are [out, in]."""

    attention_norm: Tensor  # [H]
    qkv: Tensor  # [(Hq + 2 Hkv) D, H]: q rows, then k, then v
    qkv_bias: Tensor | None  # [(Hq + 2 Hkv) D]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    output: Tensor  # [H, Hq D]
    output_bias: Tensor | None  # [H]
    mlp_norm: Tensor  # [H]
    gate_up: Tensor  # [2 F, H]: gate rows, then up
    gate_up_bias: Tensor | None  # [2 F]
    down: Tensor  # [H, F]
    down_bias: Tensor | None  # [H]


@dataclass(frozen=True)
class DecoderWeights:
    """Everything a decoder multiplies by."""

    embedding: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [H]
    logits: Tensor  # [V, H]; the embedding itself when tied

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, a tied embedding counted once."""
        tensors = [self.embedding, self.final_norm, self.logits]
        tensors += [t for layer in self.layers for t in vars(layer).values() if t is not None]
        return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def gather_weights(
    config: ModelConfig, get: GetTensor, *, dtype: torch.dtype, device: torch.device | str
) -> DecoderWeights:
    """Collects, checks, converts and fuses the weights.

    Args:
        config: what shapes and biases to expect.
        get: finds a tensor by its Hugging Face name, e.g. ``model.layers.0.self_attn.q_proj.weight``.
        dtype: of the result.
        device: of the result.

    Raises:
        ValueError: a tensor is missing or has another shape than the config says.
    """
    hidden, ffn, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    q_rows, kv_rows = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def load(name: str, *shape: int) -> Tensor:
        try:
            tensor = get(name)
        except KeyError:
            raise ValueError(f"{config.name}: expected a tensor {name!r} of shape {shape}, got none") from None
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{config.name}: expected tensor {name!r} of shape {shape}, got {tuple(tensor.shape)}")
        return tensor.to(dtype=dtype, device=device)

    def bias(present: bool, *parts: tuple[str, int]) -> Tensor | None:
        return torch.cat([load(f"{name}.bias", rows) for name, rows in parts]) if present else None

    def layer(index: int) -> LayerWeights:
        base = f"model.layers.{index}"
        attention, mlp = f"{base}.self_attn", f"{base}.mlp"
        qkv = [
            (f"{attention}.q_proj", q_rows),
            (f"{attention}.k_proj", kv_rows),
            (f"{attention}.v_proj", kv_rows),
        ]
        gate_up = [(f"{mlp}.gate_proj", ffn), (f"{mlp}.up_proj", ffn)]
        return LayerWeights(
            attention_norm=load(f"{base}.input_layernorm.weight", hidden),
            qkv=torch.cat([load(f"{name}.weight", rows, hidden) for name, rows in qkv]),
            qkv_bias=bias(config.qkv_bias, *qkv),
            q_norm=load(f"{attention}.q_norm.weight", config.head_dim) if config.qk_norm else None,
            k_norm=load(f"{attention}.k_norm.weight", config.head_dim) if config.qk_norm else None,
            output=load(f"{attention}.o_proj.weight", hidden, q_rows),
            output_bias=bias(config.output_bias, (f"{attention}.o_proj", hidden)),
            mlp_norm=load(f"{base}.post_attention_layernorm.weight", hidden),
            gate_up=torch.cat([load(f"{name}.weight", rows, hidden) for name, rows in gate_up]),
            gate_up_bias=bias(config.mlp_bias, *gate_up),
            down=load(f"{mlp}.down_proj.weight", hidden, ffn),
            down_bias=bias(config.mlp_bias, (f"{mlp}.down_proj", hidden)),
        )

    embedding = load("model.embed_tokens.weight", vocab, hidden)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(i) for i in range(config.num_layers)),
        final_norm=load("model.norm.weight", hidden),
        logits=embedding if config.tied_embeddings else load("lm_head.weight", vocab, hidden),
    )
