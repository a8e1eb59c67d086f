"""Every check on an argument. Each failure is one sentence: ``{arg}: expected …, got …``.

The checks look at shapes, dtypes, devices and strides only and never read a tensor's contents, so that they cost a
few microseconds, cause no device sync and work on fake tensors. Contents (lengths, page ids) are checked by the
CPU backends always, and on GPUs in debug mode.
"""

from __future__ import annotations

import math
from typing import NamedTuple, NoReturn, get_args, get_type_hints

import torch
from torch import Tensor

from chunkattn.args import AppendArgs, AttentionArgs, MergeArgs, PlanArgs
from chunkattn.types import KV_DTYPES_QUANTISED, AttentionSpec, Plan

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256
MAX_SPLITS = 1024
MAX_WINDOW = 2**31 - 1
_WINDOW_RANGE = f"two integers from -1 (unlimited) to {MAX_WINDOW}"
_INT32 = torch.int32
_FP32 = torch.float32


def _bad(arg: str, expected: object, got: object) -> NoReturn:
    raise ValueError(f"{arg}: expected {expected}, got {got}")


def _shape(arg: str, tensor: Tensor, expected: str) -> NoReturn:
    _bad(arg, expected, f"shape {list(tensor.shape)}")


def _dtype(arg: str, tensor: Tensor, expected: object) -> NoReturn:
    raise TypeError(f"{arg}: expected {expected}, got {tensor.dtype}")


def _device(arg: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        _bad(arg, f"a tensor on {device}, the device of its companions", f"one on {tensor.device}")


def _contiguous_last(arg: str, tensor: Tensor) -> None:
    if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
        _bad(arg, "a contiguous last dim (stride 1)", f"stride {tensor.stride(-1)}")


def written(**named: Tensor | None) -> None:
    """These arguments are written: no element may stand in two places."""
    for arg, tensor in named.items():
        if tensor is None or 0 not in tensor.stride():
            continue
        for size, stride in zip(tensor.shape, tensor.stride()):
            if stride == 0 and size > 1:
                _bad(arg, "a tensor whose elements lie apart, since it is written", f"stride 0 in a dim of {size}")


def tensors(**named: object) -> None:
    """These arguments of a public function must be tensors."""
    for arg, value in named.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{arg}: expected a tensor, got {type(value).__name__}")


def argument_types(args: NamedTuple) -> None:
    """Every field of an op's arguments must be of the type that chunkattn.args declares."""
    for arg, declared in get_type_hints(type(args)).items():
        value = getattr(args, arg)
        kinds = get_args(declared) or (declared,)  # X | None, or X
        if float in kinds:
            kinds += (int,)
        if not isinstance(value, kinds):
            names = {Tensor: "a tensor", type(None): "None"}
            wanted = " or ".join(names.get(kind, kind.__name__) for kind in kinds)
            raise TypeError(f"{arg}: expected {wanted}, got {type(value).__name__}")


def flags(**named: object) -> None:
    """These arguments must be True or False; None would pass for False."""
    for arg, value in named.items():
        if not isinstance(value, bool):
            raise TypeError(f"{arg}: expected True or False, got {type(value).__name__}")


def ranks(**named: tuple[Tensor, int]) -> None:
    """These tensors must have that many dimensions."""
    for arg, (value, rank) in named.items():
        if value.dim() != rank:
            _shape(arg, value, f"{rank} dimensions")


def plan_backend(plan: object, backend: str | None) -> str:
    """A plan can only be run by the backend that made it."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: expected a chunkattn.Plan, got {type(plan).__name__}")
    if backend is not None and backend != plan.backend:
        _bad("backend", f"{plan.backend!r}, which made the plan", repr(backend))
    return plan.backend


def window(value: object) -> tuple[int, int]:
    """A window is a pair of inclusive counts, -1 = unlimited."""
    if not (isinstance(value, tuple | list) and len(value) == 2):
        _bad("window", "a pair (left, right)", repr(value))
    left, right = value
    if not (isinstance(left, int) and isinstance(right, int)):
        _bad("window", _WINDOW_RANGE, repr(value))
    _window_counts(left, right)
    return left, right


def _window_counts(left: int, right: int) -> None:
    if not (-1 <= left <= MAX_WINDOW and -1 <= right <= MAX_WINDOW):
        _bad("window", _WINDOW_RANGE, (left, right))


def num_splits(value: int | None, invariant: bool) -> int:
    """None or 0 is planned; a fixed count contradicts invariant mode."""
    if value is None:
        return 0
    if not isinstance(value, int) or not 0 <= value <= MAX_SPLITS:
        _bad("num_splits", f"None or an integer from 1 to {MAX_SPLITS}", repr(value))
    if value and invariant:
        _bad("num_splits", "None with invariant=True, whose split boundaries are fixed", value)
    return value


def _no_gradients(*named: tuple[str, Tensor | None]) -> None:
    """The operators have no backward pass; a gradient that silently stops here would be worse than an error."""
    if not torch.is_grad_enabled():
        return
    for arg, tensor in named:
        if tensor is not None and tensor.requires_grad:
            _bad(arg, "a tensor that needs no gradient (wrap the call in torch.no_grad())", "one that does")


def _pools(k_cache: Tensor, v_cache: Tensor, dtype: torch.dtype) -> None:
    if k_cache.dim() != 4:
        _shape("k_cache", k_cache, "[N, P, Hkv, D]")
    if v_cache.dim() != 4 or v_cache.shape[:3] != k_cache.shape[:3]:
        _shape("v_cache", v_cache, f"[N, P, Hkv, Dv] with the first three of k_cache {list(k_cache.shape[:3])}")
    if k_cache.dtype != dtype and k_cache.dtype not in KV_DTYPES_QUANTISED:
        _dtype("k_cache", k_cache, f"{dtype}, float8_e4m3fn, float8_e5m2 or int8")
    if v_cache.dtype != k_cache.dtype:
        _dtype("v_cache", v_cache, f"{k_cache.dtype}, the dtype of k_cache")
    if k_cache.shape[1] < 1:
        _shape("k_cache", k_cache, "a page size of at least 1")
    _contiguous_last("k_cache", k_cache)
    _contiguous_last("v_cache", v_cache)


def _batch(block_table: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, device: torch.device) -> None:
    if seq_lens.dim() != 1:
        _shape("seq_lens", seq_lens, "[B]")
    requests = seq_lens.shape[0]
    if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] != requests + 1:
        _shape("cu_seqlens_q", cu_seqlens_q, f"[{requests + 1}] (B + 1)")
    if block_table.dim() != 2 or block_table.shape[0] != requests:
        _shape("block_table", block_table, f"[{requests}, M] (B rows)")
    for arg, index in (("block_table", block_table), ("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens)):
        if index.dtype != _INT32:
            _dtype(arg, index, _INT32)
        _device(arg, index, device)
    if cu_seqlens_q.stride(0) != 1:
        _bad("cu_seqlens_q", "a contiguous tensor", f"stride {cu_seqlens_q.stride(0)}")
    if seq_lens.stride(0) != 1 and requests > 1:
        _bad("seq_lens", "a contiguous tensor", f"stride {seq_lens.stride(0)}")


def _head_dims(head_dim: int, head_dim_v: int) -> None:
    for arg, dim in (("k_cache", head_dim), ("v_cache", head_dim_v)):
        if dim < 8 or dim > MAX_HEAD_DIM or dim % 8:
            _bad(arg, f"a head dim that is a multiple of 8 up to {MAX_HEAD_DIM}", dim)


def _scale(arg: str, scale: Tensor, pool: Tensor, device: torch.device) -> str:
    """Checks one scale and returns its granularity."""
    if scale.dtype != _FP32:
        _dtype(arg, scale, _FP32)
    _device(arg, scale, device)
    if pool.dtype not in KV_DTYPES_QUANTISED:
        _bad(arg, f"no scale for a cache of {pool.dtype}", f"shape {list(scale.shape)}")
    if scale.dim() == 0:
        return "tensor"
    if scale.dim() == 1 and scale.shape[0] == pool.shape[2]:
        return "head"
    if scale.dim() == 3 and scale.shape == pool.shape[:3]:
        return "token"
    _shape(arg, scale, f"[], [Hkv] = [{pool.shape[2]}] or [N, P, Hkv] = {list(pool.shape[:3])}")


def _scales(
    k_scale: Tensor | None, v_scale: Tensor | None, k_cache: Tensor, v_cache: Tensor, device: torch.device
) -> str:
    if k_scale is None and v_scale is None:
        return "none"
    kinds = []
    for arg, scale, pool in (("k_scale", k_scale, k_cache), ("v_scale", v_scale, v_cache)):
        if scale is not None:
            kinds.append(_scale(arg, scale, pool, device))
    return max(kinds, key=("tensor", "head", "token").index)


def _fp32_vector(arg: str, tensor: Tensor, shapes: tuple[tuple[int, ...], ...], device: torch.device) -> None:
    if tensor.dtype != _FP32:
        _dtype(arg, tensor, _FP32)
    if tuple(tensor.shape) not in shapes:
        _shape(arg, tensor, " or ".join(str(list(shape)) for shape in shapes))
    _device(arg, tensor, device)


def attention(a: AttentionArgs) -> AttentionSpec:
    """Checks one attention call and returns its facts.

    Raises:
        ValueError: a shape, stride, device or value is wrong.
        TypeError: a dtype is wrong.
    """
    q, k_cache, out = a.q, a.k_cache, a.out
    if q.dim() != 3:
        _shape("q", q, "[T, Hq, D]")
    dtype, device = q.dtype, q.device
    if dtype not in DTYPES:
        _dtype("q", q, "bfloat16, float16 or float32")
    _no_gradients(("q", q), ("k_cache", k_cache), ("v_cache", a.v_cache), ("out", out), ("lse", a.lse))
    written(out=out, lse=a.lse)
    _pools(k_cache, a.v_cache, dtype)
    _device("k_cache", k_cache, device)
    _device("v_cache", a.v_cache, device)
    num_tokens, num_q_heads, head_dim = q.shape
    _, page_size, num_kv_heads, cache_dim = k_cache.shape
    head_dim_v = a.v_cache.shape[3]
    _head_dims(cache_dim, head_dim_v)
    if head_dim != cache_dim:
        _shape("q", q, f"head dim {cache_dim}, that of k_cache")
    if num_kv_heads < 1 or num_q_heads < 1 or num_q_heads % num_kv_heads:
        _shape("q", q, f"a number of query heads that is a multiple of the {num_kv_heads} KV heads")
    _contiguous_last("q", q)
    _batch(a.block_table, a.cu_seqlens_q, a.seq_lens, device)

    if out.dtype != dtype:
        _dtype("out", out, f"{dtype}, the dtype of q")
    if out.dim() != 3 or out.shape[0] != num_tokens or out.shape[1] != num_q_heads or out.shape[2] != head_dim_v:
        _shape("out", out, f"[T, Hq, Dv] = {[num_tokens, num_q_heads, head_dim_v]}")
    _device("out", out, device)
    _contiguous_last("out", out)
    if a.lse is not None:
        _fp32_vector("lse", a.lse, ((num_tokens, num_q_heads),), device)
    if a.alibi_slopes is not None:
        shapes = ((num_q_heads,), (a.seq_lens.shape[0], num_q_heads))
        _fp32_vector("alibi_slopes", a.alibi_slopes, shapes, device)
    if a.sinks is not None:
        _fp32_vector("sinks", a.sinks, ((num_q_heads,),), device)
    if a.tree_mask is not None:
        if a.tree_mask.dtype != _INT32:
            _dtype("tree_mask", a.tree_mask, _INT32)
        if a.tree_mask.dim() != 2 or a.tree_mask.shape[0] != num_tokens:
            _shape("tree_mask", a.tree_mask, f"[T, words] with T = {num_tokens}")
        _device("tree_mask", a.tree_mask, device)
        _contiguous_last("tree_mask", a.tree_mask)
    granularity = "none"
    if a.k_scale is not None or a.v_scale is not None:
        granularity = _scales(a.k_scale, a.v_scale, k_cache, a.v_cache, device)
    if a.plan is not None:
        _plan_words("plan", a.plan, device)
    if a.workspace is not None:
        _workspace(a.workspace, device)
    if not math.isfinite(a.softmax_scale):
        _bad("softmax_scale", "a finite number", a.softmax_scale)
    if not (a.softcap >= 0.0 and math.isfinite(a.softcap)):
        _bad("softcap", "a finite number >= 0 (0 = off)", a.softcap)
    _window_counts(a.window_left, a.window_right)
    num_splits(a.num_splits, a.invariant)
    return AttentionSpec(
        device.type,
        dtype,
        k_cache.dtype,
        num_q_heads,
        num_kv_heads,
        head_dim,
        head_dim_v,
        page_size,
        a.causal,
        a.window_left >= 0 or a.window_right >= 0,
        a.softcap > 0.0,
        a.alibi_slopes is not None,
        a.sinks is not None,
        a.tree_mask is not None,
        granularity,
        a.invariant,
    )


def _plan_words(arg: str, words: Tensor, device: torch.device) -> None:
    if words.dtype != torch.int64 or words.dim() != 1 or words.stride(0) != 1:
        _bad(arg, "the contiguous int64 words of a Plan", f"{words.dtype} of shape {list(words.shape)}")
    _device(arg, words, device)


def _workspace(workspace: Tensor, device: torch.device) -> None:
    if workspace.dtype != torch.uint8:
        _dtype("workspace", workspace, "torch.uint8")
    if workspace.dim() != 1 or workspace.stride(0) != 1:
        _shape("workspace", workspace, "[bytes], contiguous")
    _device("workspace", workspace, device)


def append_kv(a: AppendArgs) -> AttentionSpec:
    """Checks one append_kv call and returns its facts."""
    k, v = a.k, a.v
    if k.dim() != 3:
        _shape("k", k, "[T, Hkv, D]")
    if v.dim() != 3 or v.shape[:2] != k.shape[:2]:
        _shape("v", v, f"[T, Hkv, Dv] with the first two of k {list(k.shape[:2])}")
    if k.dtype not in DTYPES:
        _dtype("k", k, "bfloat16, float16 or float32")
    if v.dtype != k.dtype:
        _dtype("v", v, f"{k.dtype}, the dtype of k")
    device = k.device
    _device("v", v, device)
    _contiguous_last("k", k)
    _contiguous_last("v", v)
    _pools(a.k_cache, a.v_cache, k.dtype)
    written(k_cache=a.k_cache, v_cache=a.v_cache, q=a.q)
    _device("k_cache", a.k_cache, device)
    _device("v_cache", a.v_cache, device)
    if k.shape[1:] != a.k_cache.shape[2:]:
        _shape("k", k, f"[T, Hkv, D] with those of k_cache {list(a.k_cache.shape[2:])}")
    if v.shape[1:] != a.v_cache.shape[2:]:
        _shape("v", v, f"[T, Hkv, Dv] with those of v_cache {list(a.v_cache.shape[2:])}")
    _batch(a.block_table, a.cu_seqlens_q, a.seq_lens, device)
    granularity = _scales(a.k_scale, a.v_scale, a.k_cache, a.v_cache, device)
    if a.slot_mapping is not None:
        if a.slot_mapping.dtype not in (torch.int32, torch.int64):
            _dtype("slot_mapping", a.slot_mapping, "torch.int32 or torch.int64")
        if a.slot_mapping.dim() != 1 or a.slot_mapping.shape[0] > k.shape[0]:
            _shape("slot_mapping", a.slot_mapping, f"one dimension of at most T = {k.shape[0]}")
        _device("slot_mapping", a.slot_mapping, device)
    if a.q is not None:
        if a.q.dim() != 3 or a.q.shape[0] != k.shape[0] or a.q.shape[2] != k.shape[2]:
            _shape("q", a.q, f"[T, Hq, D] with T = {k.shape[0]}, D = {k.shape[2]}")
        if a.q.dtype != k.dtype:
            _dtype("q", a.q, f"{k.dtype}, the dtype of k")
        _device("q", a.q, device)
        _contiguous_last("q", a.q)
        if a.rope_cos is None:
            _bad("q", "None without rope, since q is only rotated", "a tensor")
    _rope(a, device)
    _no_gradients(("k", k), ("v", v), ("k_cache", a.k_cache), ("v_cache", a.v_cache), ("q", a.q))
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
            _bad("rope", "both cos and sin", "one of them")
        if a.rope_positions is not None:
            _bad("rope.positions", "None without cos and sin", "a tensor")
        return
    for arg, table in (("rope.cos", cos), ("rope.sin", sin)):
        if table.dtype != _FP32:
            _dtype(arg, table, _FP32)
        if table.dim() != 2 or table.shape != cos.shape:
            _shape(arg, table, "[positions, rotary_dim / 2], the same for cos and sin")
        _device(arg, table, device)
        _contiguous_last(arg, table)
    if cos.stride(0) != sin.stride(0):
        _bad("rope.sin", f"the row stride of rope.cos, {cos.stride(0)}", sin.stride(0))
    if not 1 <= cos.shape[1] <= a.k.shape[2] // 2:
        _shape("rope.cos", cos, f"a rotary_dim / 2 from 1 to D / 2 = {a.k.shape[2] // 2}")
    positions = a.rope_positions
    if positions is not None:
        if positions.dtype != torch.int64:
            _dtype("rope.positions", positions, "torch.int64")
        if (
            positions.dim() != 1
            or positions.shape[0] != a.k.shape[0]
            or (positions.stride(0) != 1 and len(positions) > 1)
        ):
            _shape("rope.positions", positions, f"[T] = [{a.k.shape[0]}], contiguous")
        _device("rope.positions", positions, device)


def merge_states(a: MergeArgs) -> AttentionSpec:
    """Checks one merge_states call and returns its facts."""
    out_a = a.out_a
    if out_a.dim() != 3:
        _shape("out_a", out_a, "[T, H, Dv]")
    if out_a.dtype not in DTYPES:
        _dtype("out_a", out_a, "bfloat16, float16 or float32")
    for arg, state in (("out_a", out_a), ("out_b", a.out_b), ("out", a.out)):
        if state.shape != out_a.shape:
            _shape(arg, state, f"{list(out_a.shape)}, that of out_a")
        if state.dtype != out_a.dtype:
            _dtype(arg, state, f"{out_a.dtype}, the dtype of out_a")
        _device(arg, state, out_a.device)
        _contiguous_last(arg, state)
    for arg, lse in (("lse_a", a.lse_a), ("lse_b", a.lse_b), ("lse", a.lse)):
        _fp32_vector(arg, lse, (tuple(out_a.shape[:2]),), out_a.device)
    _no_gradients(("out_a", out_a), ("out_b", a.out_b), ("out", a.out), ("lse_a", a.lse_a), ("lse_b", a.lse_b))
    written(out=a.out, lse=a.lse)
    _, heads, dim = out_a.shape
    return AttentionSpec(out_a.device.type, out_a.dtype, out_a.dtype, heads, heads, dim, dim, 1, op="merge_states")


def plan(a: PlanArgs) -> AttentionSpec:
    """Checks one plan call and returns its facts."""
    seq_lens, cu_seqlens_q = a.seq_lens, a.cu_seqlens_q
    if seq_lens.dim() != 1:
        _shape("seq_lens", seq_lens, "[B]")
    if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] != seq_lens.shape[0] + 1:
        _shape("cu_seqlens_q", cu_seqlens_q, f"[{seq_lens.shape[0] + 1}] (B + 1)")
    for arg, index in (("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens)):
        if index.dtype != _INT32:
            _dtype(arg, index, _INT32)
        _device(arg, index, seq_lens.device)
        if index.stride(0) != 1 and index.shape[0] > 1:
            _bad(arg, "a contiguous tensor", f"stride {index.stride(0)}")
    _plan_words("words", a.words, seq_lens.device)
    if a.num_kv_heads < 1 or a.num_q_heads < 1 or a.num_q_heads % a.num_kv_heads:
        _bad("num_q_heads", f"a positive multiple of num_kv_heads {a.num_kv_heads}", a.num_q_heads)
    for arg, dim in (("head_dim", a.head_dim), ("head_dim_v", a.head_dim_v)):
        if dim < 8 or dim > MAX_HEAD_DIM or dim % 8:
            _bad(arg, f"a multiple of 8 up to {MAX_HEAD_DIM}", dim)
    _window_counts(a.window_left, a.window_right)
    num_splits(a.num_splits, a.invariant)
    if a.page_size < 1:
        _bad("page_size", "at least 1", a.page_size)
    if a.dtype not in DTYPES:
        raise TypeError(f"dtype: expected bfloat16, float16 or float32, got {a.dtype}")
    if a.layout not in ("NHD", "HND"):
        _bad("layout", "'NHD' or 'HND'", repr(a.layout))
    return AttentionSpec(
        seq_lens.device.type,
        a.dtype,
        a.dtype,
        a.num_q_heads,
        a.num_kv_heads,
        a.head_dim,
        a.head_dim_v,
        a.page_size,
        a.causal,
        a.window_left >= 0 or a.window_right >= 0,
        invariant=a.invariant,
        op="plan",
    )


def pages(arg: str, cache: Tensor, index_args: tuple[tuple[str, Tensor], ...]) -> None:
    """Checks a pool and the page lists of the page operators."""
    if cache.dim() < 2:
        _shape(arg, cache, "[N, …], pages first")
    for name, index in index_args:
        if index.dtype not in (torch.int32, torch.int64):
            _dtype(name, index, "torch.int32 or torch.int64")
        if index.dim() != 1:
            _shape(name, index, "one dimension of page ids")
        _device(name, index, cache.device)


def page_block(arg: str, block: Tensor, cache: Tensor, count: int) -> None:
    """Checks the dense side of gather_pages and scatter_pages."""
    if block.shape != (count, *cache.shape[1:]):
        _shape(arg, block, f"{[count, *cache.shape[1:]]}")
    if block.dtype != cache.dtype:
        _dtype(arg, block, f"{cache.dtype}, the dtype of the cache")
    _device(arg, block, cache.device)


def same_count(arg: str, index: Tensor, other_arg: str, other: Tensor) -> None:
    """Two page lists must pair up."""
    if index.shape[0] != other.shape[0]:
        _shape(arg, index, f"[{other.shape[0]}], as many as {other_arg}")
