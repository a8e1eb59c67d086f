"""What is measured side by side: one module a provider, loaded when it is used."""

from __future__ import annotations

import importlib
from typing import cast

from chunkattn.bench.providers.base import Provider

MODULES = {
    "chunkattn": "chunkattn.bench.providers.chunkattn_best",
    "torch-sdpa": "chunkattn.bench.providers.torch_sdpa",
    "vllm-cpu": "chunkattn.bench.providers.vllm_cpu",
    "sglang-cpu": "chunkattn.bench.providers.sglang_cpu",
    "llama-cpp": "chunkattn.bench.providers.llama_cpp",
    "flex-attention": "chunkattn.bench.providers.flex_attention",
    "torch-varlen": "chunkattn.bench.providers.torch_varlen",
    "flash-attn-2": "chunkattn.bench.providers.flash_attn2",
    "flash-attn-3": "chunkattn.bench.providers.flash_attn3",
    "flash-attn-4": "chunkattn.bench.providers.flash_attn4",
    "flashinfer-prefill": "chunkattn.bench.providers.flashinfer_prefill",
    "flashinfer-batch": "chunkattn.bench.providers.flashinfer_batch",
    "flashinfer-pod": "chunkattn.bench.providers.flashinfer_pod",
    "vllm-triton": "chunkattn.bench.providers.vllm_triton",
}

OURS = ("chunkattn",)


def load(name: str) -> Provider:
    """The provider called `name`.

    Raises:
        ValueError: no provider has that name.
    """
    if name not in MODULES:
        raise ValueError(f"providers: expected names out of {', '.join(MODULES)}, got {name!r}")
    return cast(Provider, importlib.import_module(MODULES[name]))


def for_device(device: str) -> tuple[str, ...]:
    """Names of the providers that run on a type of device."""
    return tuple(name for name in MODULES if device in load(name).DEVICES)
