"""Arguments of every torch op, positional as in its schema, for checks that go over all of them."""

from __future__ import annotations

from typing import Any

import torch

from chunkattn.testing import AttentionCase, build

BASE = AttentionCase("base", (3, 0, 1), (40, 5, 17))


def attention_arguments(case: AttentionCase, *, lse: bool = True, backend: str | None = None) -> tuple[Any, ...]:
    """Of torch.ops.chunkattn.attention; out and lse are fresh."""
    inputs = build(case)
    out, lse_buffer = inputs.empty_state(0.0)
    scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
    return (
        *inputs.batch(),
        out,
        lse_buffer if lse else None,
        inputs.alibi_slopes,
        inputs.sinks,
        inputs.tree_mask,
        inputs.k_scale,
        inputs.v_scale,
        None,
        None,
        scale,
        case.causal,
        *case.window,
        case.softcap,
        case.invariant,
        case.num_splits or 0,
        backend,
    )


def append_arguments(case: AttentionCase, *, rope: bool = False, slots: bool = False, backend: str | None = None):
    """Of torch.ops.chunkattn.append_kv."""
    inputs = build(case, poison="zero")
    tokens = inputs.q.shape[0]
    k = torch.randn(tokens, case.num_kv_heads, case.head_dim).to(case.dtype)
    v = torch.randn(tokens, case.num_kv_heads, case.value_dim).to(case.dtype)
    angles = torch.arange(700)[:, None] * torch.ones(case.head_dim // 2)
    slot_mapping = torch.arange(tokens, dtype=torch.int64) if slots else None
    rotation = (inputs.q, angles.cos(), angles.sin(), None) if rope else (None,) * 4
    batch = inputs.k_cache, inputs.v_cache, *inputs.batch()[3:]
    return (k, v, *batch, slot_mapping, inputs.k_scale, inputs.v_scale, *rotation, False, backend)


def merge_arguments(dtype: torch.dtype = torch.float32, backend: str | None = None) -> tuple[Any, ...]:
    """Of torch.ops.chunkattn.merge_states."""
    states = [torch.randn(5, 3, 16).to(dtype) for _ in range(3)]
    weights = [torch.randn(5, 3) for _ in range(3)]
    return (states[0], weights[0], states[1], weights[1], states[2], weights[2], backend)


ATTENTION_SAMPLES = {
    "plain": BASE,
    "no lse": BASE.but(name="no lse"),
    "transposed q": BASE.but(q_layout="head_major"),
    "196 tokens": BASE.but(q_lens=(196,), kv_lens=(196,), num_q_heads=2),
    "257 tokens": BASE.but(q_lens=(250, 7), kv_lens=(250, 9), num_q_heads=2, layout="hnd"),
    "one token": BASE.but(q_lens=(1,), kv_lens=(1,)),
    "no token": BASE.but(q_lens=(0,), kv_lens=(4,)),
    "alibi sinks cap window": BASE.but(alibi="head", sinks=True, softcap=5.0, window=(7, -1)),
    "alibi per request, tree": BASE.but(alibi="request", tree=True, causal=False),
    "fp8": BASE.but(kv_dtype=torch.float8_e4m3fn, scale_mode="tensor", layout="fused"),
    "int8": BASE.but(kv_dtype=torch.int8, scale_mode="token_head", head_dim_v=32),
    "invariant": BASE.but(invariant=True, dtype=torch.float32),
    "splits": BASE.but(num_splits=3, dtype=torch.float16),
}
APPEND_SAMPLES = {
    "plain": (BASE, {}),
    "rope and q": (BASE.but(dtype=torch.float32), {"rope": True}),
    "slots": (BASE.but(layout="hnd"), {"slots": True}),
    "fp8": (BASE.but(kv_dtype=torch.float8_e4m3fn, scale_mode="head"), {"rope": True}),
    "int8": (BASE.but(kv_dtype=torch.int8, scale_mode="token_head"), {"slots": True}),
    "196 tokens": (BASE.but(q_lens=(196,), kv_lens=(200,)), {}),
    "257 tokens": (BASE.but(q_lens=(257,), kv_lens=(257,), q_layout="head_major"), {"rope": True}),
}


def samples(backend: str | None = None):
    """(name, op, arguments) of every op with every sample."""
    ops = torch.ops.chunkattn
    for name, case in ATTENTION_SAMPLES.items():
        yield (
            f"attention {name}",
            ops.attention.default,
            attention_arguments(case, lse=name != "no lse", backend=backend),
        )
    for name, (case, options) in APPEND_SAMPLES.items():
        yield f"append_kv {name}", ops.append_kv.default, append_arguments(case, **options, backend=backend)
    for dtype in (torch.float32, torch.bfloat16):
        yield f"merge_states {dtype}", ops.merge_states.default, merge_arguments(dtype, backend)
    pages = torch.tensor([2, 0])
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        pool = torch.randn(4, 8, 2, 16).to(dtype)
        yield f"copy_pages {dtype}", ops.copy_pages.default, (pool, pages, torch.tensor([1, 3]), backend)
        yield f"gather_pages {dtype}", ops.gather_pages.default, (pool, pages, torch.zeros_like(pool[:2]), backend)
        yield f"scatter_pages {dtype}", ops.scatter_pages.default, (pool[:2].clone(), pool, pages.int(), backend)
