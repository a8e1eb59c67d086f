"""What the documentation shows of the other libraries' interfaces runs."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name",
    ["flash_attn.varlen", "flash_attn.kvcache", "flashinfer.prefill", "flashinfer.decode", "flashinfer.attention"],
)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"chunkattn.compat.{name}"))
    assert result.attempted >= 4
    assert result.failed == 0


def test_nothing_third_party_is_imported_by_the_shims():
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'flash_attn', 'flash_attn_interface', 'flashinfer', 'transformers', 'vllm'}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
import chunkattn, chunkattn.compat.flash_attn, chunkattn.compat.flash_attn_interface, chunkattn.compat.flashinfer
import chunkattn.compat.vllm, chunkattn.compat.vllm.plugin, chunkattn.compat.transformers as shim
try:
    shim.register()
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tempfile.gettempdir()).stdout
    assert output.strip().endswith("pip install 'chunkattn[transformers]'")
    assert "needs the package 'transformers', which is not installed" in output


def test_readme_snippet_for_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from chunkattn.compat.transformers import VERSIONS

    if VERSIONS.problem(transformers.__version__):
        pytest.skip(VERSIONS.problem(transformers.__version__))
    (snippet,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert snippet.count('"./smollm2"') == 1
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    exec(snippet.replace('"./smollm2"', repr(str(tmp_path))), names)
    model = names["model"]
    assert model.config._attn_implementation == "chunkattn"
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 64)
