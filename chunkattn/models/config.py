"""What a Llama-family decoder looks like: the facts every other file of this package reads."""

from __future__ import annotations

from dataclasses import dataclass

from chunkattn.models.rope import RopeConfig


class UnsupportedModelError(ValueError):
    """The model needs something this decoder does not do; the message names it."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and variants of a pre-norm decoder with grouped-query attention and a SwiGLU MLP.

    Attributes:
        name: how to call the model in messages.
        vocab_size, hidden_size, intermediate_size, num_layers: sizes.
        num_q_heads, num_kv_heads, head_dim: attention sizes; ``head_dim`` need not be
            ``hidden_size / num_q_heads``.
        rms_norm_eps: epsilon of every RMSNorm.
        max_positions: positions the model was trained for; the RoPE tables have as many rows.
        rope: the rotary embedding.
        windows: per layer, how many tokens a query sees including itself; None = all before it.
        qkv_bias, output_bias, mlp_bias: which linear layers carry a bias.
        qk_norm: whether q and k are RMS-normalised per head before RoPE.
        tied_embeddings: whether logits use the input embedding.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    rope: RopeConfig
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_q_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.name}: expected the query heads to be a multiple of the KV heads, "
                f"got {self.num_q_heads} and {self.num_kv_heads}"
            )
        if len(self.windows) != self.num_layers:
            raise ValueError(f"windows: expected one per layer ({self.num_layers}), got {len(self.windows)}")
