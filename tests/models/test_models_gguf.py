"""A GGUF file written here gives the logits of the Hugging Face directory with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from checkpoint import TINY_LLAMA, formula_tokens, formula_weight, llama_shapes, write_checkpoint

from chunkattn.models import Decoder, UnsupportedModelError, hf_directory, load_model
from chunkattn.models.gguf_file import GgufFile
from chunkattn.types import Batch

# Byte-level BPE over single letters: every byte's printable stand-in, a merge, and an end token.
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
TOKENS = ["<end>", "Ġ", *LETTERS, *"0123456789", "he", "llo", "hello", "ll"]
MERGES = ["h e", "l l", "ll o", "he llo"]
FILLER = [f"<unused{i}>" for i in range(TINY_LLAMA["vocab_size"] - len(TOKENS))]
CONTROL, NORMAL = 3, 1


def interleave(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of q or k so that RoPE pairs (i, i + D/2) come to lie side by side, as GGUF converters do."""
    rows, columns = weight.shape
    return weight.view(num_heads, 2, rows // num_heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(
    path: Path, *, architecture: str = "llama", pre: str = "smollm", quantised: bool = False, **extra: Any
) -> None:
    config = TINY_LLAMA
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*TOKENS, *FILLER])
    writer.add_token_types([CONTROL, *[NORMAL] * (config["vocab_size"] - 1)])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}<end>")
    for name, value in extra.items():
        writer.add_uint32(name, value) if isinstance(value, int) else writer.add_string(name, value)
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "o_proj": "attn_output"}
    names |= {f"{x}_proj": f"attn_{x}" for x in "qkv"} | {f"{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, shape in llama_shapes(config).items():
        weight = formula_weight(name, shape)
        parts = name.split(".")
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(parts[-2])
        weight = interleave(weight, config[heads]) if heads else weight
        stem = name.removesuffix(".weight")
        target = top[stem] if stem in top else f"blk.{parts[2]}.{names[parts[-2]]}"
        if quantised and weight.shape[-1] == 32 and weight.dim() == 2:  # blocks of 32
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{target}.weight", gguf.quants.quantize(weight.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{target}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(decoder: Decoder) -> torch.Tensor:
    tokens = formula_tokens(30, TINY_LLAMA["vocab_size"])
    cache = decoder.allocate_cache(8, 4)
    batch = Batch.from_lists([30], [30], [[5, 2, 7, 0, 1, 3, 6, 4]])
    return decoder.forward(tokens, batch, cache, torch.arange(30))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    directory = tmp_path_factory.mktemp("hf")
    write_checkpoint(directory, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    config = hf_directory.read_config(directory)
    return logits(Decoder(config, hf_directory.read_weights(directory, config, dtype=torch.float32, device="cpu")))


def test_logits_equal_the_directory(tmp_path: Path, expected: torch.Tensor) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    model = load_model(str(tmp_path / "tiny.gguf"))
    assert model.config.rope.interleaved
    torch.testing.assert_close(logits(model.decoder), expected, rtol=1e-5, atol=1e-5)


def test_quantised_weights_are_close(tmp_path: Path, expected: torch.Tensor) -> None:
    write_gguf(tmp_path / "tiny.gguf", quantised=True)
    error = (logits(load_model(str(tmp_path / "tiny.gguf")).decoder) - expected).norm() / expected.norm()
    assert 0 < error < 0.05  # eight bits a weight


def test_tokenizer_merges_and_ends(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    tokenizer = load_model(str(tmp_path / "tiny.gguf")).tokenizer
    ids = tokenizer.encode("hello h12")
    assert [TOKENS[i] for i in ids] == ["hello", "Ġ", "h", "1", "2"]
    assert tokenizer.decode(ids) == "hello h12"
    assert tokenizer.encode_chat("hello") == [TOKENS.index("hello"), 0]
    assert tokenizer.eos_token_ids == {0}
    assert tokenizer.decode([0]) == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "qwen2"}, "expected the GGUF architecture 'llama', got 'qwen2'"),
        ({"llama.expert_count": 4}, "mixture of experts is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "expected unscaled RoPE in a GGUF file, got 'yarn'"),
        (
            {"pre": "llama-bpe"},
            "expected the GGUF tokenizer 'gpt2' with pre-tokenizer 'smollm', got 'gpt2' with 'llama-bpe'",
        ),
    ],
)
def test_refuses_by_name(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", **options)
    with pytest.raises(UnsupportedModelError, match=f"^tiny: {message}"):
        load_model(str(tmp_path / "tiny.gguf"))


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all, just some bytes")
    with pytest.raises(ValueError, match="model: expected a GGUF file"):
        GgufFile(tmp_path / "x.gguf")
