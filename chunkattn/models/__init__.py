"""A small Llama-family decoder that uses only the public operators, and loaders for its weights."""

from __future__ import annotations

from chunkattn.models.config import ModelConfig, UnsupportedModelError
from chunkattn.models.decoder import Decoder
from chunkattn.models.load import Model, load_model, model_path
from chunkattn.models.tokenizer import StreamingText, Tokenizer

__all__ = [
    "Decoder",
    "Model",
    "ModelConfig",
    "StreamingText",
    "Tokenizer",
    "UnsupportedModelError",
    "load_model",
    "model_path",
]
