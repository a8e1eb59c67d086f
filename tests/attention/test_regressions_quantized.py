"""Quantised caches on every path: scales used, told apart, per head and per token (d30)."""

from __future__ import annotations

import math

import pytest
import torch

import chunkattn
from chunkattn.testing import AttentionCase, assert_rows_close, assert_state_close, build

KV_DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]
I32 = torch.int32


def closed_form(kv_dtype, k_scale, v_scale, backend, q_len=1, heads=(2, 1), history=0, **options):
    """q = e0, scale ln 3, true K 0 and 1, true V 0 and 4: 3/4 of the weight is on the second key, so out = 3."""
    num_q_heads, num_kv_heads = heads
    k_cache = torch.zeros(3, 16, num_kv_heads, 16)
    k_cache[2, 1, :, 0] = 2.0
    v_cache = torch.zeros(3, 16, num_kv_heads, 16)
    v_cache[2, 1] = 2.0
    q = torch.zeros(q_len, num_q_heads, 16, dtype=torch.bfloat16)
    q[..., 0] = 1.0
    return chunkattn.attention(
        q, k_cache.to(kv_dtype), v_cache.to(kv_dtype), torch.tensor([[2]], dtype=I32),
        torch.tensor([0, q_len], dtype=I32), torch.tensor([2], dtype=I32), softmax_scale=math.log(3),
        causal=False, k_scale=k_scale, v_scale=v_scale, backend=backend, **options,
    )  # fmt: skip


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("q_len", [1, 2, 40])
def test_d30_closed_form(kv_dtype, q_len, backend):
    half, two = torch.tensor(0.5), torch.tensor(2.0)
    shapes = ((), (1,), (3, 16, 1))
    for k_shape in shapes:
        for v_shape in shapes:
            for options in ({}, {"num_splits": 3}, {"invariant": True}, {"softcap": 1e6}):
                k_scale, v_scale = half.expand(k_shape).contiguous(), two.expand(v_shape).contiguous()
                out = closed_form(kv_dtype, k_scale, v_scale, backend, q_len, **options)
                assert_rows_close(out, torch.full(out.shape, 3.0).double())
    # What wrong handling would give: 3.6 without k_scale, 1.5 without v_scale.
    assert closed_form(kv_dtype, None, two, backend)[0, 0, 0].item() == pytest.approx(3.6, rel=4e-3)
    assert closed_form(kv_dtype, half, None, backend)[0, 0, 0].item() == pytest.approx(1.5, rel=4e-3)
    assert closed_form(kv_dtype, None, None, backend)[0, 0, 0].item() == pytest.approx(1.8, rel=4e-3)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_d30_scales_of_different_heads(kv_dtype, backend):
    k_scale, v_scale = torch.tensor([0.5, 0.25, 0.5]), torch.tensor([2.0, 2.0, 1.0])
    out = closed_form(kv_dtype, k_scale, v_scale, backend, heads=(6, 3))
    root = 3**0.5
    expected = torch.tensor([3.0, 3.0, 4 * root / (1 + root), 4 * root / (1 + root), 1.5, 1.5])
    assert_rows_close(out, expected[None, :, None].expand(1, 6, 16).double())


def test_strided_scales(backend):
    """Scales may be views: every second entry of a longer vector, a layer of a cross-layer tensor."""
    case = AttentionCase("strided", (5, 1), (40, 300), kv_dtype=torch.int8, scale_mode="token_head", num_kv_heads=4)
    inputs = build(case)
    wide = torch.full((*inputs.k_scale.shape, 3), math.nan)
    wide[..., 1] = inputs.k_scale
    transposed = inputs.v_scale.transpose(1, 2).contiguous().transpose(1, 2)
    out = chunkattn.attention(
        *inputs.batch(), k_scale=wide[..., 1], v_scale=transposed, return_lse=True, backend=backend
    )
    assert_state_close(out, inputs.expected())
    per_head = build(case.but(scale_mode="head"))
    vector = torch.full((8,), math.nan)
    vector[::2] = per_head.k_scale
    out = chunkattn.attention(
        *per_head.batch(), k_scale=vector[::2], v_scale=per_head.v_scale, return_lse=True, backend=backend
    )
    assert_state_close(out, per_head.expected())


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("scale_mode", ["tensor", "head", "token_head"])
def test_chunked_prefill_with_a_quantised_cache(kv_dtype, scale_mode, backend):
    """Append with quantisation, then attend, chunk by chunk, against the oracle on what was stored."""
    case = AttentionCase("chunks", (90,), (90,), kv_dtype=kv_dtype, scale_mode=scale_mode)
    inputs = build(case, poison="zero")
    plain = build(case.but(kv_dtype=None, scale_mode="none"))
    page = plain.block_table[0, :6].long()
    k, v = (pool[page].reshape(-1, 2, 64)[:90].clone() for pool in (plain.k_cache, plain.v_cache))
    inputs.k_cache.view(torch.uint8).zero_()
    inputs.v_cache.view(torch.uint8).zero_()
    scales = {"k_scale": inputs.k_scale, "v_scale": inputs.v_scale}
    states = []
    for begin, end in ((0, 37), (37, 89), (89, 90)):
        batch = inputs.block_table, torch.tensor([0, end - begin], dtype=I32), torch.tensor([end], dtype=I32)
        pools = inputs.k_cache, inputs.v_cache
        chunkattn.append_kv(k[begin:end], v[begin:end], *pools, *batch, **scales, backend=backend)
        states.append(
            chunkattn.attention(inputs.q[begin:end], *pools, *batch, **scales, return_lse=True, backend=backend)
        )
    joined = torch.cat([s[0] for s in states]), torch.cat([s[1] for s in states])
    assert_state_close(joined, inputs.expected())
    # And what was stored is close to what was meant.
    meant = plain.expected()[0]
    error = (joined[0].double() - meant).norm() / meant.norm()
    assert error < (0.12 if kv_dtype == torch.float8_e5m2 else 0.06)
