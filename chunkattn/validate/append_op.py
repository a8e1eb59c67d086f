"""What `append_kv` accepts."""

from __future__ import annotations

import torch

from chunkattn.args import AppendArgs
from chunkattn.types import DTYPES, MAX_HEAD_DIM, AttentionSpec
from chunkattn.validate.batch import batch
from chunkattn.validate.pool import pools, scales
from chunkattn.validate.sentences import bad, bad_dtype, bad_shape
from chunkattn.validate.tensor import FP32, contiguous_last, no_gradients, on_device, written


def append_kv(a: AppendArgs) -> AttentionSpec:
    """Checks one append_kv call and returns its facts."""
    k, v = a.k, a.v
    if k.dim() != 3:
        bad_shape("k", k, "[T, Hkv, D]")
    if v.dim() != 3 or v.shape[:2] != k.shape[:2]:
        bad_shape("v", v, f"[T, Hkv, Dv] with the first two of k {list(k.shape[:2])}")
    if k.dtype not in DTYPES:
        bad_dtype("k", k, "bfloat16, float16 or float32")
    pools(a.k_cache, a.v_cache, "k", k)
    if v.dtype != k.dtype:
        bad_dtype("v", v, f"{k.dtype}, the dtype of k")
    device = k.device
    on_device("v", v, device)
    contiguous_last("k", k)
    contiguous_last("v", v)
    written(k_cache=a.k_cache, v_cache=a.v_cache, q=a.q)
    on_device("k_cache", a.k_cache, device)
    on_device("v_cache", a.v_cache, device)
    for arg, pool in (("k_cache", a.k_cache), ("v_cache", a.v_cache)):
        if not 1 <= pool.shape[3] <= MAX_HEAD_DIM:  # no multiple of 8 is asked for: rows of any length are stored
            bad(arg, f"a head dim from 1 to {MAX_HEAD_DIM}", pool.shape[3])
    if k.shape[1:] != a.k_cache.shape[2:]:
        bad_shape("k", k, f"[T, Hkv, D] with those of k_cache {list(a.k_cache.shape[2:])}")
    if v.shape[1:] != a.v_cache.shape[2:]:
        bad_shape("v", v, f"[T, Hkv, Dv] with those of v_cache {list(a.v_cache.shape[2:])}")
    batch(a.block_table, a.cu_seqlens_q, a.seq_lens, device)
    granularity = scales(a.k_scale, a.v_scale, a.k_cache, a.v_cache, device)
    if a.slot_mapping is not None:
        if a.slot_mapping.dtype not in (torch.int32, torch.int64):
            bad_dtype("slot_mapping", a.slot_mapping, "torch.int32 or torch.int64")
        if a.slot_mapping.dim() != 1 or a.slot_mapping.shape[0] > k.shape[0]:
            bad_shape("slot_mapping", a.slot_mapping, f"one dimension of at most T = {k.shape[0]}")
        on_device("slot_mapping", a.slot_mapping, device)
    if a.q is not None:
        if a.q.dim() != 3 or a.q.shape[0] != k.shape[0] or a.q.shape[2] != k.shape[2]:
            bad_shape("q", a.q, f"[T, Hq, D] with T = {k.shape[0]}, D = {k.shape[2]}")
        if a.q.dtype != k.dtype:
            bad_dtype("q", a.q, f"{k.dtype}, the dtype of k")
        on_device("q", a.q, device)
        contiguous_last("q", a.q)
        if a.rope_cos is None:
            bad("q", "None without rope, since q is only rotated", "a tensor")
    _rope(a, device)
    no_gradients(k=k, v=v, k_cache=a.k_cache, v_cache=a.v_cache, k_scale=a.k_scale, v_scale=a.v_scale, q=a.q)
    no_gradients(**{"rope.cos": a.rope_cos, "rope.sin": a.rope_sin})
    num_q_heads = a.q.shape[1] if a.q is not None else k.shape[1]
    return AttentionSpec(
        device.type,
        k.dtype,
        a.k_cache.dtype,
        num_q_heads,
        k.shape[1],
        k.shape[2],
        v.shape[2],
        a.k_cache.shape[1],
        kv_scale=granularity,
        op="append_kv",
    )


def _rope(a: AppendArgs, device: torch.device) -> None:
    cos, sin = a.rope_cos, a.rope_sin
    if cos is None or sin is None:
        if cos is not sin:
            bad("rope", "both cos and sin", "one of them")
        if a.rope_positions is not None:
            bad("rope.positions", "None without cos and sin", "a tensor")
        return
    for arg, table in (("rope.cos", cos), ("rope.sin", sin)):
        if table.dtype != FP32:
            bad_dtype(arg, table, FP32)
        if table.dim() != 2 or table.shape != cos.shape:
            bad_shape(arg, table, "[positions, rotary_dim / 2], the same for cos and sin")
        on_device(arg, table, device)
        contiguous_last(arg, table)
    if cos.stride(0) != sin.stride(0):
        bad("rope.sin", f"the row stride of rope.cos, {cos.stride(0)}", sin.stride(0))
    if not 1 <= cos.shape[1] <= a.k.shape[2] // 2:
        bad_shape("rope.cos", cos, f"a rotary_dim / 2 from 1 to D / 2 = {a.k.shape[2] // 2}")
    positions = a.rope_positions
    if positions is not None:
        if positions.dtype != torch.int64:
            bad_dtype("rope.positions", positions, "torch.int64")
        if (
            positions.dim() != 1
            or positions.shape[0] != a.k.shape[0]
            or (positions.stride(0) != 1 and len(positions) > 1)
        ):
            bad_shape("rope.positions", positions, f"[T] = [{a.k.shape[0]}], contiguous")
        on_device("rope.positions", positions, device)
