"""The CUDA backend: libraries of csrc/kernels, built on first use or ahead of time. The functions of
`chunkattn.backends.base`."""

from __future__ import annotations

from chunkattn.backends.cuda.backend import (
    append_kv,
    attention,
    copy_pages,
    describe,
    gather_pages,
    merge_states,
    plan,
    plan_workspace_bytes,
    prepare,
    repeat_append_kv,
    repeat_attention,
    scatter_pages,
    supports,
    workspace_bytes,
)
from chunkattn.planning.work import plan_words

__all__ = [
    "append_kv",
    "attention",
    "copy_pages",
    "describe",
    "gather_pages",
    "merge_states",
    "plan",
    "plan_words",
    "plan_workspace_bytes",
    "prepare",
    "repeat_append_kv",
    "repeat_attention",
    "scatter_pages",
    "supports",
    "workspace_bytes",
]
