"""Every check on an argument. Each failure is one sentence: ``{arg}: expected …, got …``.

The checks look at shapes, dtypes, devices and strides only and never read a tensor's contents, so that they cost a
few microseconds, cause no device sync and work on fake tensors. Contents (lengths, page ids) are checked by the
CPU backends always, and on GPUs in debug mode. Which memory arguments share is looked at in `overlap`, which needs data
pointers and so runs only where there are some.
"""

from __future__ import annotations

from chunkattn.types import MAX_HEAD_DIM
from chunkattn.validate.append_op import append_kv
from chunkattn.validate.attention_op import attention
from chunkattn.validate.merge_op import merge_states
from chunkattn.validate.options import (
    MAX_COUNT,
    argument_types,
    backend_name,
    counts,
    flags,
    num_splits,
    plan_backend,
    softmax_scale,
    window,
)
from chunkattn.validate.page_ops import copy_pages, gather_pages, pages, scatter_pages
from chunkattn.validate.plan_op import plan
from chunkattn.validate.spec import refusals
from chunkattn.validate.tensor import dense, ranks, tensors

__all__ = [
    "MAX_COUNT",
    "MAX_HEAD_DIM",
    "append_kv",
    "argument_types",
    "attention",
    "backend_name",
    "copy_pages",
    "counts",
    "dense",
    "flags",
    "gather_pages",
    "merge_states",
    "num_splits",
    "pages",
    "plan",
    "plan_backend",
    "ranks",
    "refusals",
    "scatter_pages",
    "softmax_scale",
    "tensors",
    "window",
]
