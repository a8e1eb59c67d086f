"""What is measured side by side: one module a provider, loaded when it is used."""

from __future__ import annotations

import importlib
from typing import cast

from chunkattn.bench.providers.base import Provider

MODULES = {
    "chunkattn": "chunkattn.bench.providers.chunkattn_best",
    "torch-sdpa": "chunkattn.bench.providers.torch_sdpa",
    "flex-attention": "chunkattn.bench.providers.flex_attention",
    "vllm-cpu": "chunkattn.bench.providers.vllm_cpu",
    "sglang-cpu": "chunkattn.bench.providers.sglang_cpu",
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
