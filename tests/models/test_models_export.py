"""An exported directory holds the source's weights under Hugging Face's names and loads to the same model."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoint import TINY_LLAMA, formula_weight, llama_shapes, write_checkpoint, write_tokenizer
from click.testing import CliRunner
from safetensors.torch import load_file
from test_models_gguf import write_gguf

from chunkattn.cli.commands import cli
from chunkattn.models import UnsupportedModelError, load_model
from chunkattn.models.export import export_model

TEXT = "hello world 42 hello"


@pytest.fixture
def gguf_path(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


def write_source(folder) -> str:
    """A checkpoint's directory."""
    (folder / "source").mkdir()
    write_checkpoint(folder / "source", TINY_LLAMA, llama_shapes(TINY_LLAMA))
    write_tokenizer(folder / "source", ["hello"])
    return str(folder / "source")


def test_gguf_weights_come_back_in_hugging_face_order(gguf_path, tmp_path):
    export_model(load_model(str(gguf_path)), tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    shapes = llama_shapes(TINY_LLAMA)
    assert set(tensors) == set(shapes)
    for name, shape in shapes.items():
        assert torch.equal(tensors[name], formula_weight(name, shape)), name


def test_config_and_tokenizer(gguf_path, tmp_path):
    source = load_model(str(gguf_path))
    files = export_model(source, tmp_path / "out")
    assert {f.name for f in files} == {p.name for p in (tmp_path / "out").iterdir()}
    again = load_model(str(tmp_path / "out"))
    facts = ("vocab_size", "num_layers", "num_q_heads", "num_kv_heads", "head_dim", "rms_norm_eps", "tied_embeddings")
    assert [getattr(again.config, x) for x in facts] == [getattr(source.config, x) for x in facts]
    assert again.config.rope.theta == source.config.rope.theta
    assert again.tokenizer.encode(TEXT) == source.tokenizer.encode(TEXT)
    assert again.tokenizer.encode_chat(TEXT) == source.tokenizer.encode_chat(TEXT)
    assert again.tokenizer.eos_token_ids == source.tokenizer.eos_token_ids


def test_exporting_twice_changes_nothing(tmp_path):
    config = {**TINY_LLAMA, "tie_word_embeddings": True, "rope_theta": 5000.0}
    source, once, twice = tmp_path / "source", tmp_path / "once", tmp_path / "twice"
    source.mkdir()
    write_checkpoint(source, config, llama_shapes(config))
    write_tokenizer(source, ["hello"])
    for origin, target in ((source, once), (once, twice)):
        result = CliRunner().invoke(
            cli, ["models", "export", str(target), "--model", str(origin), "--dtype", "bfloat16"]
        )
        assert result.exit_code == 0, result.output
    for file in once.iterdir():
        assert file.read_bytes() == (twice / file.name).read_bytes(), file.name
    assert json.loads((once / "config.json").read_text())["dtype"] == "bfloat16"
    expected = {name: formula_weight(name, shape).bfloat16() for name, shape in llama_shapes(config).items()}
    tensors = load_file(once / "model.safetensors")
    assert all(torch.equal(tensors[name], weight) for name, weight in expected.items())


def test_a_variant_llama_lacks_is_refused(tmp_path):
    config = {**TINY_LLAMA, "model_type": "mistral", "sliding_window": 16}
    write_checkpoint(tmp_path, config, llama_shapes(config))
    write_tokenizer(tmp_path, ["hello"])
    with pytest.raises(UnsupportedModelError, match="sliding windows"):
        export_model(load_model(str(tmp_path)), tmp_path / "out")


def test_a_model_without_an_end_token_is_exported(tmp_path):
    source = load_model(write_source(tmp_path))
    source.tokenizer.eos_token_ids = frozenset()
    export_model(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] is None
    assert "eos_token" not in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert load_model(str(tmp_path / "out")).tokenizer.encode(TEXT) == source.tokenizer.encode(TEXT)


def test_weights_that_cannot_be_written_are_one_sentence(tmp_path):
    (tmp_path / "out" / "model.safetensors").mkdir(parents=True)
    result = CliRunner().invoke(cli, ["models", "export", str(tmp_path / "out"), "--model", write_source(tmp_path)])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {tmp_path}/out/model.safetensors: ")


def test_a_model_is_not_exported_over_itself(tmp_path):
    """In another dtype that would lose digits, and its weights are being read."""
    source = write_source(tmp_path)
    before = {file.name: file.read_bytes() for file in (tmp_path / "source").iterdir()}
    result = CliRunner().invoke(cli, ["models", "export", f"{source}/../source", "--model", source])
    assert result.exit_code == 1
    assert result.output.startswith("Error: directory: expected another one than the model's, got ")
    assert {file.name: file.read_bytes() for file in (tmp_path / "source").iterdir()} == before


def test_a_folder_may_have_the_name_of_the_model_that_a_package_brings(gguf_path, tmp_path, monkeypatch):
    monkeypatch.setattr("chunkattn.models.load.find_smollm2", lambda: gguf_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time it is there
        result = CliRunner().invoke(cli, ["models", "export", "./smollm2"])
        assert result.exit_code == 0, result.output
    assert load_model("./smollm2").tokenizer.encode(TEXT) == load_model(str(gguf_path)).tokenizer.encode(TEXT)
