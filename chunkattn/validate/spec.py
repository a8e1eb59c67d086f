"""What an `AttentionSpec` made by hand can hold."""

from __future__ import annotations

import torch

from chunkattn.types import DTYPES, KV_DTYPES_QUANTISED, MAX_HEAD_DIM, AttentionSpec
from chunkattn.validate.options import MAX_COUNT

_COUNTS = ("num_q_heads", "num_kv_heads", "head_dim", "head_dim_v", "page_size")
_FLAGS = ("causal", "window", "softcap", "alibi", "sinks", "tree_mask", "invariant")
_NAMES = ("device", "kv_scale", "op")
_OPS = ("attention", "plan", "append_kv", "merge_states", "pages")


def refusals(spec: AttentionSpec) -> tuple[str, ...]:
    """Why no backend serves these facts, as the operators would say; empty if nothing speaks against them.

    Raises:
        TypeError: not an AttentionSpec, or a fact of another type.
    """
    if not isinstance(spec, AttentionSpec):
        raise TypeError(f"spec: expected a chunkattn.AttentionSpec, got {type(spec).__name__}")
    for arg in _COUNTS:
        value = getattr(spec, arg)
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"spec.{arg}: expected an integer, got {type(value).__name__}")
    for arg in _FLAGS:
        if not isinstance(getattr(spec, arg), bool):
            raise TypeError(f"spec.{arg}: expected True or False, got {type(getattr(spec, arg)).__name__}")
    for arg in _NAMES:
        if not isinstance(getattr(spec, arg), str):
            raise TypeError(f"spec.{arg}: expected a name, got {type(getattr(spec, arg)).__name__}")
    for arg in ("dtype", "kv_dtype"):
        if not isinstance(getattr(spec, arg), torch.dtype):
            raise TypeError(f"spec.{arg}: expected a torch.dtype, got {type(getattr(spec, arg)).__name__}")
    if spec.op not in _OPS:
        return (f"spec.op: expected one of {', '.join(_OPS)}, got {spec.op!r}",)
    if not _is_device_type(spec.device):
        return (f"spec.device: expected a device type such as 'cpu' or 'cuda', got {spec.device!r}",)
    if spec.op in ("pages", "merge_states"):
        return ()
    reasons = []
    if spec.dtype not in DTYPES:
        reasons.append(f"spec.dtype: expected bfloat16, float16 or float32, got {spec.dtype}")
    if spec.kv_dtype != spec.dtype and spec.kv_dtype not in KV_DTYPES_QUANTISED:
        reasons.append(f"spec.kv_dtype: expected {spec.dtype}, float8_e4m3fn, float8_e5m2 or int8, got {spec.kv_dtype}")
    if spec.num_kv_heads < 1 or spec.num_q_heads < 1 or spec.num_q_heads % spec.num_kv_heads:
        wanted = f"a positive multiple of num_kv_heads {spec.num_kv_heads}"
        reasons.append(f"spec.num_q_heads: expected {wanted}, got {spec.num_q_heads}")
    for arg, dim in (("head_dim", spec.head_dim), ("head_dim_v", spec.head_dim_v)):
        if not 8 <= dim <= MAX_HEAD_DIM or dim % 8:
            reasons.append(f"spec.{arg}: expected a multiple of 8 up to {MAX_HEAD_DIM}, got {dim}")
    if spec.page_size < 1:
        reasons.append(f"spec.page_size: expected at least 1, got {spec.page_size}")
    for arg in _COUNTS:
        if getattr(spec, arg) > MAX_COUNT:
            reasons.append(f"spec.{arg}: expected at most {MAX_COUNT}, got {getattr(spec, arg)}")
    if spec.kv_scale not in ("none", "tensor", "head", "token"):
        reasons.append(f"spec.kv_scale: expected 'none', 'tensor', 'head' or 'token', got {spec.kv_scale!r}")
    elif spec.kv_scale != "none" and spec.kv_dtype not in KV_DTYPES_QUANTISED:
        reasons.append(f"spec.kv_scale: expected 'none' for a cache of {spec.kv_dtype}, got {spec.kv_scale!r}")
    return tuple(reasons)


def _is_device_type(name: str) -> bool:
    """A type without an index: which one of its devices is not a fact of the problem."""
    try:
        return torch.device(name).type == name
    except RuntimeError:
        return False
