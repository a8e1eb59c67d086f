"""Addresses beyond 31 and 32 bits by the Triton and CUDA kernels, and more than 2^16 requests and work items (d21).

Every tensor of a call lies in memory that is reserved and hardly touched, so far apart along one of its dims that the
last index is 2^32 elements away. Where an offset wraps, results are wrong or an access leaves its tensor.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import chunkattn
from chunkattn.testing import (
    AttentionCase,
    append_kv_oracle,
    assert_bitwise_equal,
    assert_rows_close,
    assert_state_close,
    build,
    merge_states_oracle,
)

from . import cuda_backend, native, triton_backend, triton_driver
from .session import Session

FAR = 2**32  # elements
NAN = math.nan
I32 = torch.int32
RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


def missing(backend: str) -> str | None:
    """Why a backend cannot run here; None if it can."""
    if backend == "cuda":
        return cuda_backend.unavailable_reason(cutlass=True)
    return native.unavailable_reason() or (None if triton_driver.available() else "triton is not installed")


@pytest.fixture(params=["triton", "cuda"])
def backend(request: pytest.FixtureRequest) -> str:
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.fixture(params=[80, 90], ids=["sm_80", "sm_90"], autouse=True)
def emulated_gpu(request: pytest.FixtureRequest, backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    module = triton_backend if backend == "triton" else cuda_backend
    yield from module.open_session((request.param, 0), monkeypatch)


def reserved(count: int, dtype: torch.dtype) -> Tensor:
    """[count] of zeros that take memory, 4 KB at a time, once they are written."""
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=RESERVED)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def apart(x: Tensor, dim: int) -> Tensor:
    """The same numbers, with the last index along a dim FAR elements or more from the first."""
    order = [dim, *(d for d in range(x.dim()) if d != dim)]
    inner = x.numel() // x.shape[dim]
    step = max(inner, -(-FAR // max(x.shape[dim] - 1, 1)) + 63) // 64 * 64
    strides = [0] * x.dim()
    for d, stride in zip(order, (step, *torch.empty([x.shape[d] for d in order], device="meta").stride()[1:])):
        strides[d] = stride
    far = reserved(step * (x.shape[dim] - 1) + inner, x.dtype).as_strided(x.shape, strides)
    return far.copy_(x)


def all_apart(place: int, **tensors: Tensor | None) -> dict[str, Tensor | None]:
    """Each tensor apart along its dim `place`, or the last dim that may have a stride if it has fewer."""
    free = {"block_table", "alibi_slopes", "sinks", "k_scale", "v_scale", "lse", "lse_a", "lse_b", "slot_mapping"}
    return {
        name: x if x is None else apart(x, min(place, x.dim() - (1 if name in free else 2)))
        for name, x in tensors.items()
    }


MIXED = AttentionCase("mixed", (1, 37, 0, 5), (260, 300, 7, 70), num_q_heads=6, padding=3, alibi="request", sinks=True,
                      tree=True, num_splits=2)  # fmt: skip
QUANTISED = MIXED.but(name="quantised", kv_dtype=torch.float8_e4m3fn, scale_mode="token_head")
PLAIN = MIXED.but(name="plain", alibi=None, sinks=False, tree=False, num_splits=None, head_dim=128)


@pytest.mark.full
@pytest.mark.parametrize("place", [0, 1, 2], ids=["outer", "middle", "inner"])
@pytest.mark.parametrize("case", [MIXED, QUANTISED, PLAIN], ids=str)
def test_attention(case, place, backend):
    """Tokens, pages, requests; heads, slots, columns; heads of pools: more than 2^31 elements of each tensor (d21)."""
    inputs = build(case)
    out, lse = inputs.empty_state(NAN)
    tensors = {
        field.name: getattr(inputs, field.name)
        for field in dataclasses.fields(inputs)
        if field.name not in ("case", "cu_seqlens_q", "seq_lens")
    }
    far = dataclasses.replace(inputs, **all_apart(place, **tensors))
    state = all_apart(place, out=out, lse=lse)
    chunkattn.attention(*far.batch(), **far.options(), **state, return_lse=True, backend=backend)
    assert_state_close((state["out"], state["lse"]), inputs.expected(), context=f"{case}: ")


def test_sinks(backend):
    """One logit a query head, the only tensor of which heads are the outermost dim."""
    case = AttentionCase("sinks", (1,), (5,), num_q_heads=4, num_kv_heads=1, head_dim=32, sinks=True)
    inputs = build(case)
    far = dataclasses.replace(inputs, sinks=apart(inputs.sinks, 0))
    state = chunkattn.attention(*far.batch(), **far.options(), return_lse=True, backend=backend)
    assert_state_close(state, inputs.expected())


@pytest.mark.full
def test_states_of_splits(backend):
    """A workspace with room for 2^31 elements of partial states; maxima and sums lie behind them."""
    case = AttentionCase("partials", (1, 5), (300, 280), num_q_heads=32, head_dim=128, padding=506, num_splits=1024)
    inputs = build(case)
    spec = chunkattn.AttentionSpec("cpu", case.dtype, case.dtype, 32, 2, 128, 128, 16)
    columns = inputs.block_table.shape[1]
    size = chunkattn.workspace_bytes(spec, max_tokens=512, max_seq_len=16 * columns, num_splits=1024, backend=backend)
    assert size > 4 * 2**31
    workspace = reserved(size, torch.uint8)
    state = chunkattn.attention(
        *inputs.batch(), **inputs.options(), return_lse=True, workspace=workspace, backend=backend
    )
    assert_state_close(state, inputs.expected())


@pytest.mark.full
@pytest.mark.parametrize("place", [0, 1, 2], ids=["outer", "middle", "inner"])
@pytest.mark.parametrize("mapped", [False, True], ids=["derived", "mapped"])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
def test_append_kv(kv_dtype, mapped, place, backend):
    scales = "none" if kv_dtype == torch.bfloat16 else "token_head"
    case = AttentionCase("append", (1, 0, 17, 5), (1, 30, 40, 5), kv_dtype=kv_dtype, scale_mode=scales, padding=2)
    inputs = build(case, poison="zero")
    generator = torch.Generator().manual_seed(1)
    k, v = torch.randn(2, case.num_tokens, case.num_kv_heads, 64, generator=generator).to(torch.bfloat16)
    angle = torch.arange(64)[:, None] * 10000.0 ** (-torch.arange(0, 32, 2) / 32)
    tensors = {"k": k, "v": v, "k_cache": inputs.k_cache, "v_cache": inputs.v_cache, "block_table": inputs.block_table}
    lengths = {"cu_seqlens_q": inputs.cu_seqlens_q, "seq_lens": inputs.seq_lens}
    options = {"k_scale": inputs.k_scale, "v_scale": inputs.v_scale, "slot_mapping": None, "q": None}
    rope = near_rope = None
    if mapped:
        options["slot_mapping"] = torch.randperm(16 * inputs.k_cache.shape[0], generator=generator)[: sum(case.q_lens)]
    if kv_dtype == torch.bfloat16:
        options["q"] = inputs.q
        near_rope = chunkattn.Rope(angle.cos(), angle.sin())
        rope = chunkattn.Rope(apart(angle.cos(), 0), apart(angle.sin(), 0))
    expected = append_kv_oracle(**tensors, **lengths, **options, rope=near_rope)
    far, far_options = all_apart(place, **tensors), all_apart(place, **options)
    chunkattn.append_kv(**far, **lengths, **far_options, rope=rope, backend=backend)
    assert_bitwise_equal(far["v_cache"], expected.v_cache, name="v_cache")
    if rope is None:
        assert_bitwise_equal(far["k_cache"], expected.k_cache, name="k_cache")
        assert_bitwise_equal(far_options["k_scale"], expected.k_scale, name="k_scale")
        assert_bitwise_equal(far_options["v_scale"], expected.v_scale, name="v_scale")
    else:
        assert_rows_close(far["k_cache"], expected.k_cache.double(), name="k_cache")
        assert_rows_close(far_options["q"], expected.q.double(), name="q")


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("place", [0, 1], ids=["outer", "inner"])
def test_merge_states(place, dtype, backend):
    generator = torch.Generator().manual_seed(1)
    out_a, out_b = torch.randn(2, 9, 3, 64, generator=generator).to(dtype)
    lse_a, lse_b = torch.randn(2, 9, 3, generator=generator)
    result = all_apart(place, out=torch.full_like(out_a, NAN), lse=torch.full_like(lse_a, NAN))
    states = all_apart(place, out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    chunkattn.merge_states(**states, **result, backend=backend)
    assert_state_close((result["out"], result["lse"]), merge_states_oracle(out_a, lse_a, out_b, lse_b))


@pytest.mark.full
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["outer", "middle", "inner"])
def test_pages(place, index_dtype, backend):
    near = torch.randn(7, 16, 3, 40, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    pool = apart(near, place)
    source, target = (apart(torch.tensor(ids, dtype=index_dtype), 0) for ids in ([6, 0, 5], [2, 4, 1]))
    chunkattn.copy_pages(pool, source, target, backend=backend)
    near[[2, 4, 1]] = near[[6, 0, 5]]
    assert_bitwise_equal(pool, near)
    block = apart(torch.zeros_like(near[:3]), place)
    chunkattn.gather_pages(pool, source, out=block, backend=backend)
    assert_bitwise_equal(block, near[[6, 0, 5]])
    block.neg_()
    chunkattn.scatter_pages(block, pool, target, backend=backend)
    near[[2, 4, 1]] = -near[[6, 0, 5]]
    assert_bitwise_equal(pool, near)


@pytest.mark.full
@pytest.mark.parametrize("q_len", [1, 2], ids=["decodes", "prefills"])
def test_d21_more_requests_and_items_than_16_bits_number(q_len, backend):
    """65,537 requests of one page each, the bits of a value in each: rows 8 or 32 of a tile."""
    count, heads = 2**16 + 1, 8 if q_len == 1 else 16
    generator = torch.Generator().manual_seed(1)
    pool = torch.randn(count, q_len, 1, 32, generator=generator).to(torch.bfloat16)
    order = torch.randperm(count, generator=generator)
    cu_seqlens_q = torch.arange(0, q_len * count + 1, q_len, dtype=I32)
    seq_lens = torch.full((count,), q_len, dtype=I32)
    q = torch.zeros(q_len * count, heads, 32, dtype=torch.bfloat16)
    out, lse = chunkattn.attention(
        q, pool, pool, order.to(I32)[:, None], cu_seqlens_q, seq_lens, return_lse=True, backend=backend
    )
    # q = 0: every row is the mean of the values it sees.
    seen = torch.arange(1, q_len + 1).double()
    mean = (pool[order, :, 0].double().cumsum(1) / seen[:, None]).flatten(0, 1)
    assert_rows_close(out, mean[:, None].expand(-1, heads, -1))
    assert torch.allclose(lse.double(), seen.log().repeat(count)[:, None].expand(-1, heads), atol=1e-6)


@pytest.mark.full
def test_more_tokens_and_pages_than_16_bits_number(backend):
    """A step of 65,537 tokens is appended, its pages move, its states are merged with others that hold nothing."""
    count = 2**16 + 1
    generator = torch.Generator().manual_seed(1)
    k, v = torch.randn(2, count, 1, 8, generator=generator).to(torch.bfloat16)
    k_cache, v_cache = torch.zeros(2, count + 1, 1, 1, 8, dtype=torch.bfloat16)
    order = torch.randperm(count, generator=generator)
    lengths = torch.tensor([0, count], dtype=I32), torch.tensor([count], dtype=I32)
    chunkattn.append_kv(k, v, k_cache, v_cache, order.to(I32)[None], *lengths, backend=backend)
    assert_bitwise_equal(k_cache[order, 0], k)
    assert_bitwise_equal(v_cache[order, 0], v)
    assert not k_cache[count].any()
    gathered = chunkattn.gather_pages(v_cache, order, backend=backend)
    assert_bitwise_equal(gathered[:, 0], v)
    lse = torch.randn(count, 1, generator=generator)
    merged, merged_lse = chunkattn.merge_states(k, torch.full_like(lse, -math.inf), v, lse, backend=backend)
    assert_bitwise_equal(merged, v)
    assert_bitwise_equal(merged_lse, lse)
