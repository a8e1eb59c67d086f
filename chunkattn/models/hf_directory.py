"""Loads a local Hugging Face model directory: config.json, safetensors (sharded or not) and tokenizer.json."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from chunkattn.extras import require
from chunkattn.models.chat_template import ChatTemplate
from chunkattn.models.config import ModelConfig
from chunkattn.models.hf_config import config_from_hf
from chunkattn.models.tokenizer import Tokenizer
from chunkattn.models.weights import DecoderWeights, GetTensor, gather_weights


def read_config(directory: Path) -> ModelConfig:
    """The model's sizes and variants.

    Raises:
        ValueError: there is no config.json, or the model is not one the decoder can do.
    """
    return config_from_hf(_read_json(directory, "config.json"), name=directory.name)


def read_weights(
    directory: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device | str
) -> DecoderWeights:
    """The model's weights, from ``model.safetensors`` or the shards of ``model.safetensors.index.json``.

    Raises:
        ValueError: no weights, or weights that do not fit the config.
    """
    with ExitStack() as stack:
        get = _tensor_getter(directory, stack)
        return gather_weights(config, get, dtype=dtype, device=device)


def read_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer with its chat template and the tokens that end an answer.

    Raises:
        ValueError: there is no tokenizer.json.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"model: expected a tokenizer.json in {directory}, got none")
    backend = require("tokenizers", extra="demo", purpose="reading tokenizer.json").Tokenizer.from_file(str(path))
    # Some files were saved in the middle of training and would cut or pad what they are given.
    backend.no_truncation()
    backend.no_padding()
    settings = _read_json(directory, "tokenizer_config.json", required=False)
    special = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }
    source = _chat_template_source(directory, settings)
    return Tokenizer(
        backend,
        eos_token_ids=_eos_token_ids(directory, backend, special),
        chat_template=ChatTemplate(source, special) if source else None,
    )


def _tensor_getter(directory: Path, stack: ExitStack) -> GetTensor:
    safetensors = require("safetensors", extra="demo", purpose="reading safetensors weights")
    index = _read_json(directory, "model.safetensors.index.json", required=False)
    files: dict[str, Any] = {}
    if index:
        shard_of: dict[str, str] = index["weight_map"]
    elif (directory / "model.safetensors").is_file():
        shard_of = {}
    else:
        raise ValueError(
            f"model: expected model.safetensors or model.safetensors.index.json in {directory}, got neither"
        )

    def opened(shard: str) -> Any:
        if shard not in files:
            path = directory / shard
            if not path.is_file():
                raise ValueError(f"model: expected the shard {shard} in {directory}, got none")
            files[shard] = stack.enter_context(safetensors.safe_open(str(path), framework="pt"))
        return files[shard]

    def get(name: str) -> torch.Tensor:
        if index:
            tensor: torch.Tensor = opened(shard_of[name]).get_tensor(name)
            return tensor
        file = opened("model.safetensors")
        if name not in file.keys():  # noqa: SIM118  (not a dict)
            raise KeyError(name)
        tensor = file.get_tensor(name)
        return tensor

    return get


def _chat_template_source(directory: Path, settings: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _eos_token_ids(directory: Path, backend: Any, special: dict[str, str]) -> set[int]:
    """generation_config.json decides, then config.json; the tokenizer's own end token counts as well."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(directory, name, required=False).get("eos_token_id")
        if value is not None:
            ids = {value} if isinstance(value, int) else set(value)
            break
    own = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return ids if own is None else ids | {own}


def _read_json(directory: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    path = directory / name
    if not path.is_file():
        if required:
            raise ValueError(f"model: expected a {name} in {directory}, got none")
        return {}
    with path.open(encoding="utf-8") as file:
        try:
            parsed: dict[str, Any] = json.load(file)
        except json.JSONDecodeError as error:
            raise ValueError(f"model: expected JSON in {path}, got {error}") from None
    return parsed
