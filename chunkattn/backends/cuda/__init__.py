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
from chunkattn.backends.cuda.figures import compiled
from chunkattn.backends.cuda.settings import kernel_of, planned, settings_space, tuning_key, with_settings
from chunkattn.backends.gpu_settings import mix_class
from chunkattn.planning.work import plan_words

__all__ = [
    "append_kv",
    "attention",
    "compiled",
    "copy_pages",
    "describe",
    "gather_pages",
    "kernel_of",
    "merge_states",
    "mix_class",
    "plan",
    "plan_words",
    "plan_workspace_bytes",
    "planned",
    "prepare",
    "repeat_append_kv",
    "repeat_attention",
    "scatter_pages",
    "settings_space",
    "supports",
    "tuning_key",
    "with_settings",
    "workspace_bytes",
]
