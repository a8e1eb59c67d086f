"""Fused chunked-attention operators for LLM inference.

One call serves a ragged batch of prefill chunks, decodes and speculative tokens over a paged KV cache. Start with
`attention`, `append_kv` and `Batch`; `explain` says which backend serves a problem and why.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from chunkattn.api.append_op import append_kv
from chunkattn.api.attention_op import attention
from chunkattn.api.backend_choice import explain, supports, workspace_bytes
from chunkattn.api.merge_op import merge_states
from chunkattn.api.page_ops import copy_pages, gather_pages, scatter_pages
from chunkattn.api.plan_op import plan
from chunkattn.errors import UnsupportedError as UnsupportedError
from chunkattn.types import AttentionSpec, Batch, PagedKV, Plan, Rope

if TYPE_CHECKING:
    from chunkattn import testing as testing

__version__ = "0.1.0"

__all__ = [
    "AttentionSpec",
    "Batch",
    "PagedKV",
    "Plan",
    "Rope",
    "append_kv",
    "attention",
    "copy_pages",
    "explain",
    "gather_pages",
    "merge_states",
    "plan",
    "scatter_pages",
    "supports",
    "workspace_bytes",
]


def __getattr__(name: str) -> ModuleType:
    """`chunkattn.testing` is imported when it is first asked for: serving does not need it."""
    if name == "testing":
        return importlib.import_module("chunkattn.testing")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
