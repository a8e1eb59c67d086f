"""The public operators: defaults and allocation around the torch ops of `chunkattn.ops`."""

from __future__ import annotations

from chunkattn.api.append_op import append_kv
from chunkattn.api.attention_op import attention
from chunkattn.api.backend_choice import explain, supports, workspace_bytes
from chunkattn.api.merge_op import merge_states
from chunkattn.api.page_ops import copy_pages, gather_pages, scatter_pages
from chunkattn.api.plan_op import plan

__all__ = [
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
