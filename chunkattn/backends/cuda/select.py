"""Which variants can serve a problem on a GPU, best first, and why the others cannot."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from chunkattn.backends.cuda import work_spec
from chunkattn.backends.device import Gpu
from chunkattn.build.variants import Variant, all_variants
from chunkattn.types import AttentionSpec

OLDEST_ARCH = 80
# So few columns of V do not average away what rounding takes off the weights: one row in 20,000 would exceed the error
# it may have with 32 columns, one in a hundred with 8. Tiles this narrow multiply V with the rest of the weights, too.
NARROW_VALUES = 32
_DTYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int8: "i8",
}
ATTENTION_OPS = ("attention", "plan")
# Options that are called otherwise where they are arguments.
_ARGUMENTS = {"alibi": "alibi_slopes", "kv_scale": "k_scale", "token_scale": "k_scale"}


def runs_on(variant: Variant, device: Gpu) -> bool:
    """sm_90a code runs on sm_90 alone; sm_80's PTX is compiled for whatever is newer."""
    return device.arch == 90 if variant.arch == "90a" else device.arch >= int(variant.arch)


def of_kernel(kernel: str, device: Gpu) -> tuple[Variant, ...]:
    """Variants of a kernel that takes any problem, the newest architecture first."""
    found = [variant for variant in all_variants() if variant.kernel == kernel and runs_on(variant, device)]
    return tuple(sorted(found, key=lambda variant: -int(variant.arch.rstrip("a"))))


@functools.lru_cache(maxsize=1024)
def candidates(spec: AttentionSpec, device: Gpu) -> tuple[tuple[Variant, ...], str]:
    """(variants that serve the problem, best first; why there is none, "" if there is one)."""
    if device.arch < OLDEST_ARCH:
        return (), f"compute capability 8.0 is needed, the GPU has {device.arch / 10}"
    if not all_variants():
        return (), "the package came without kernel sources (csrc)"
    if spec.op not in ATTENTION_OPS:
        found = of_kernel(spec.op, device)
        return found, "" if found else f"no variant of {spec.op} is listed for sm_{device.arch}"
    return _attention(spec, device)


def _attention(spec: AttentionSpec, device: Gpu) -> tuple[tuple[Variant, ...], str]:
    dtype, kv_dtype = _DTYPES[spec.dtype], _DTYPES[spec.kv_dtype]
    dims = f"{spec.head_dim}" if spec.head_dim == spec.head_dim_v else f"{spec.head_dim}/{spec.head_dim_v}"
    listed = [variant for variant in all_variants() if variant.kernel.startswith("attention_")]
    listed = [variant for variant in listed if runs_on(variant, device)]
    fitting = [variant for variant in listed if _width(variant, spec) is not None and variant.dtype == dtype]
    # The newest architecture, then the narrowest tile that holds the head dims: what wgmma gains over mma.sync is more
    # than 96 columns lose in a tile of 128 (an estimate, not measured; a tuned choice of kernel overrides it).
    fitting.sort(key=lambda variant: (-int(variant.arch.rstrip("a")), _width(variant, spec) or 0))
    # A plan does not know what the cache holds nor the options of a call, and must serve whichever variant these need:
    # only those count whose plans are those of the best one.
    found = [
        variant
        for variant in fitting
        if work_spec.constants_of(variant) == work_spec.constants_of(fitting[0])
        and (spec.op == "plan" or variant.kv_dtype in (None, kv_dtype))
    ]
    if not found:
        kv = "" if kv_dtype == dtype else f" with {kv_dtype} KV"
        reason = f"no attention variant is listed for head dim {dims}, {dtype}{kv} on sm_{device.arch}"
        return (), f"{'k_cache' if fitting else _unfit(listed, spec)}: {reason}"
    able = [variant for variant in found if not lacking(variant, spec)]
    if not able:
        arguments = (_ARGUMENTS.get(name, name) for name in lacking(found[0], spec))
        return (), f"{', '.join(arguments)}: not among the options of {found[0].kernel}"
    return tuple(able), ""


def _unfit(listed: Sequence[Variant], spec: AttentionSpec) -> str:
    """The argument for which no listed variant fits in head dims and dtype; dtypes count where the head dims fit."""
    plan = spec.op == "plan"
    if not any(variant.head_dim is not None and variant.head_dim >= spec.head_dim for variant in listed):
        return "head_dim" if plan else "q"
    if all(_width(variant, spec) is None for variant in listed):
        return "head_dim_v" if plan else "v_cache"
    return "dtype" if plan else "q"


def _width(variant: Variant, spec: AttentionSpec) -> int | None:
    """Lanes of the variant's tile; None if the problem's head dims do not fit (smaller ones are padded with zeros)."""
    head_dim, head_dim_v = variant.head_dim, variant.head_dim_v
    if head_dim is None or head_dim_v is None or head_dim < spec.head_dim or head_dim_v < spec.head_dim_v:
        return None
    if spec.head_dim_v <= NARROW_VALUES < head_dim_v:
        return None
    return head_dim + head_dim_v


def lacking(variant: Variant, spec: AttentionSpec) -> list[str]:
    """Options of the problem that the variant refuses."""
    asked = {
        name: bool(getattr(spec, name)) for name in ("window", "softcap", "alibi", "sinks", "tree_mask", "invariant")
    }
    asked["kv_scale"] = spec.kv_scale != "none"
    asked["token_scale"] = spec.kv_scale == "token"
    return [name for name in variant.lacks if asked.get(name, False)]
