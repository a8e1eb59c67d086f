"""Loads a GGUF file of a Llama model with a byte-level BPE tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from chunkattn.extras import require
from chunkattn.models.chat_template import ChatTemplate
from chunkattn.models.config import ModelConfig, UnsupportedModelError
from chunkattn.models.rope import RopeConfig
from chunkattn.models.tokenizer import Tokenizer
from chunkattn.models.weights import DecoderWeights, gather_weights

# Hugging Face's name of a tensor -> GGUF's.
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of special tokens


class GgufFile:
    """An opened GGUF file: its config, weights and tokenizer."""

    def __init__(self, path: Path) -> None:
        """Reads the header.

        Args:
            path: the file.

        Raises:
            UnsupportedModelError: not a Llama model.
            ValueError: not a GGUF file.
        """
        gguf = require("gguf", extra="demo", purpose="reading a GGUF file")
        self._dequantize = gguf.quants.dequantize
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError) as error:
            raise ValueError(f"model: expected a GGUF file, got {path} ({error})") from None
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.name = path.stem
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise UnsupportedModelError(f"{self.name}: expected the GGUF architecture 'llama', got {architecture!r}")

    def config(self) -> ModelConfig:
        """Sizes and variants.

        Raises:
            UnsupportedModelError: mixture of experts or a scaled RoPE.
        """
        if self._field("llama.expert_count", 0):
            raise UnsupportedModelError(f"{self.name}: mixture of experts is not supported")
        scaling = self._field("llama.rope.scaling.type", "none")
        if scaling not in ("none", None) or "rope_freqs.weight" in self._tensors:
            raise UnsupportedModelError(f"{self.name}: expected unscaled RoPE in a GGUF file, got {scaling!r}")
        layers = self._field("llama.block_count")
        hidden, q_heads = self._field("llama.embedding_length"), self._field("llama.attention.head_count")
        head_dim = self._field("llama.attention.key_length", hidden // q_heads)
        return ModelConfig(
            name=self.name,
            vocab_size=len(self._field("tokenizer.ggml.tokens")),
            hidden_size=hidden,
            intermediate_size=self._field("llama.feed_forward_length"),
            num_layers=layers,
            num_q_heads=q_heads,
            num_kv_heads=self._field("llama.attention.head_count_kv", q_heads),
            head_dim=head_dim,
            rms_norm_eps=self._field("llama.attention.layer_norm_rms_epsilon"),
            max_positions=self._field("llama.context_length"),
            rope=RopeConfig(
                theta=self._field("llama.rope.freq_base", 10000.0),
                rotary_dim=self._field("llama.rope.dimension_count", head_dim),
                interleaved=True,  # the converter permutes q and k rows so that pairs lie side by side
            ),
            windows=(None,) * layers,
            tied_embeddings="output.weight" not in self._tensors,
        )

    def weights(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device | str) -> DecoderWeights:
        """Dequantises every tensor; about 1.3 s for 135 M parameters."""

        def get(name: str) -> torch.Tensor:
            tensor = self._tensors[_gguf_name(name)]
            return torch.from_numpy(self._dequantize(tensor.data, tensor.tensor_type).copy())

        return gather_weights(config, get, dtype=dtype, device=device)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer stored in the file.

        Raises:
            UnsupportedModelError: not the byte-level BPE of SmolLM.
        """
        kind, pre = self._field("tokenizer.ggml.model"), self._field("tokenizer.ggml.pre", "")
        if (kind, pre) != ("gpt2", "smollm"):
            raise UnsupportedModelError(
                f"{self.name}: expected the GGUF tokenizer 'gpt2' with pre-tokenizer 'smollm', got {kind!r} "
                f"with {pre!r}; use the model's Hugging Face directory instead"
            )
        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        types = self._field("tokenizer.ggml.token_type")
        special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
        template = self._field("tokenizer.chat_template", None)
        return Tokenizer(
            _byte_level_bpe(tokens, self._field("tokenizer.ggml.merges"), special),
            eos_token_ids=[self._field("tokenizer.ggml.eos_token_id")],
            chat_template=ChatTemplate(template) if template else None,
        )

    def _field(self, key: str, *default: Any) -> Any:
        field = self._reader.fields.get(key)
        if field is not None:
            return field.contents()
        if default:
            return default[0]
        raise ValueError(f"{self.name}: expected {key!r} in the GGUF file, got none")


def _gguf_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, index, rest = name.split(".", 3)  # model.layers.<index>.<module>.<weight or bias>
    module, _, kind = rest.rpartition(".")
    return f"blk.{index}.{_LAYER_NAMES[module]}.{kind}"


def _byte_level_bpe(tokens: list[str], merges: list[str], special: list[str]) -> Any:
    tokenizers = require("tokenizers", extra="demo", purpose="tokenising text")
    pre = tokenizers.pre_tokenizers
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)
    )
    backend.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(special)
    return backend
