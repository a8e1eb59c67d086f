"""Triton kernels through Triton's own launch path, on CPU tensors."""

from __future__ import annotations

import gc
import math
import sys

import pytest
import torch

from . import native, triton_driver

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from .launch import Options, PtxModule, without_known_gaps
from .report import KernelError
from .session import Session, emulated


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask) + tl.load(y_ptr + offsets, mask), mask)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + columns, columns < n, -float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * stride + columns, e / tl.sum(e, 0), columns < n)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, K, BK):
        depth = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + depth[None, :], (rows[:, None] < M) & (depth[None, :] < K), 0.0)
        b = tl.load(b_ptr + depth[:, None] * N + columns[None, :], (depth[:, None] < K) & (columns[None, :] < N), 0.0)
        acc += tl.dot(a, b).to(tl.float32)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc, (rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def split_sum_kernel(x_ptr, partial_ptr, counter_ptr, out_ptr, splits, BLOCK: tl.constexpr, FENCED: tl.constexpr):
    """Every program stores a partial sum; the last one to arrive adds them up."""
    split = tl.program_id(0)
    total = tl.sum(tl.load(x_ptr + split * BLOCK + tl.arange(0, BLOCK)), 0)
    tl.store(partial_ptr + split, total)
    arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel" if FENCED else "relaxed")
    if arrived == splits - 1:
        parts = tl.load(partial_ptr + tl.arange(0, BLOCK), tl.arange(0, BLOCK) < splits, 0.0)
        tl.store(out_ptr, tl.sum(parts, 0))


@triton.jit
def descriptor_copy_kernel(x_desc, out_desc, BM: tl.constexpr, BN: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    out_desc.store([row, column], x_desc.load([row, column]) * 2)


@pytest.mark.emulated(arch=90, seeds=2)
def test_add() -> None:
    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(1000, 256),)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)


@pytest.mark.emulated(arch=80, seeds=1)
def test_softmax(emulator: Session) -> None:
    x = torch.randn(6, 100)
    out = torch.empty_like(x)
    softmax_kernel[(6,)](x, out, x.stride(0), 100, BLOCK=128)
    torch.testing.assert_close(out, torch.softmax(x, -1))
    assert emulator.counters()["softmax_kernel"]["instructions"]["collective"] > 0


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2, torch.int8], ids=str
)
@pytest.mark.parametrize("arch", [80, 90])
def test_matmul(arch: int, dtype: torch.dtype) -> None:
    if dtype == torch.float8_e5m2 and arch == 80:
        pytest.skip("no fp8 tensor cores on sm_80")
    torch.manual_seed(0)
    m, n, k = 100, 72, 96
    if dtype == torch.int8:
        a, b = torch.randint(-100, 100, (m, k), dtype=dtype), torch.randint(-100, 100, (k, n), dtype=dtype)
    else:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    c = torch.full((m, n), math.nan)
    with emulated(arch):
        matmul_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](a, b, c, m, n, k, BM=64, BN=64, BK=32, num_warps=4)
    expected = a.double() @ b.double()
    tolerance = 3e-3 if dtype == torch.float32 else 1e-4
    assert (c - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("splits", [1, 7])
def test_split_sum(splits: int) -> None:
    x, partial = torch.randn(splits * 128), torch.full((splits,), math.nan)
    for seed in range(4):
        counter, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
        with emulated(90, Options.for_seed(seed)):
            split_sum_kernel[(splits,)](x, partial, counter, out, splits, BLOCK=128, FENCED=True)
        torch.testing.assert_close(out[0], x.sum(), rtol=1e-5, atol=1e-4)


def test_split_sum_without_release_is_a_race() -> None:
    x, partial, out = torch.randn(4 * 128), torch.zeros(4), torch.zeros(1)
    counter = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(KernelError, match=r"global-race\][\s\S]*test_triton\.py"), emulated(90):
        split_sum_kernel[(4,)](x, partial, counter, out, 4, BLOCK=128, FENCED=False)


@pytest.mark.parametrize("arch", [80, 90])
def test_host_descriptors(arch: int) -> None:
    """By TMA on sm_90; on sm_80 the descriptor becomes its pointer, extents, strides and flags."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = torch.randn(100, 96, dtype=torch.float16)
    out = torch.zeros_like(x)
    with emulated(arch):
        descriptors = [TensorDescriptor.from_tensor(t, [32, 64]) for t in (x, out)]
        descriptor_copy_kernel[(4, 2)](*descriptors, BM=32, BN=64)
    assert torch.equal(out, x * 2)


def test_descriptors_that_round_to_tf32() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    if "round_f32_to_tf32" not in TensorDescriptor.__dataclass_fields__:
        pytest.skip("this Triton has no descriptors that round")
    x = torch.randn(100, 96)
    out = torch.zeros_like(x)
    with emulated(90):
        source = TensorDescriptor.from_tensor(x, [32, 32], round_f32_to_tf32=True)
        descriptor_copy_kernel[(4, 3)](source, TensorDescriptor.from_tensor(out, [32, 32]), BM=32, BN=32)
    rounded = (x.view(torch.int32) + 0x1000 & -0x2000).view(torch.float32)
    assert torch.equal(out, rounded * 2)


def test_a_fence_between_cp_async_and_wgmma_is_demanded_of_the_triton_that_has_it() -> None:
    from .triton_cases import AttentionCase, attention_kernel

    assert not without_known_gaps(Options(), (3, 6)).strict_cp_async_proxy
    assert without_known_gaps(Options(), (3, 9)).strict_cp_async_proxy
    kernel = attention_kernel(90, 64, 64, 4)
    fence = "fence.proxy.async.shared::cta;"
    loop = kernel.ptx.index("cp.async.wait_group")  # K has come, the first product follows
    text = kernel.ptx[:loop].replace("cp.async.cg", f"{fence} bar.sync 0; cp.async.cg", 1)  # for Q, which is stored
    text += kernel.ptx[loop:].replace(fence, "", 1)
    damaged = AttentionCase(kernel, ((64, 256),)).launch(PtxModule(text), Options())
    fenced = triton_driver.version() >= (3, 9)
    assert any("cp.async" in finding.message for finding in damaged.all_findings) == fenced, damaged.all_findings


def test_a_kernel_may_outlive_its_session() -> None:
    """Newer versions of Triton unload a module when its kernel is collected, also after the block has ended."""
    x, out = torch.randn(64), torch.empty(64)
    with emulated(80):
        compiled = add_kernel[(1,)](x, x, out, 64, BLOCK=64)
    with pytest.MonkeyPatch.context() as patch:
        failed: list[object] = []
        patch.setattr(sys, "unraisablehook", failed.append)
        for cache in add_kernel.device_caches.values():
            cache[0].clear()
        del compiled
        gc.collect()
    assert not failed


def test_out_of_bounds_names_the_tensor() -> None:
    x, y = torch.randn(250), torch.randn(256)
    out = torch.empty(256)
    with pytest.raises(KernelError, match=r"bounds\][\s\S]*past the end of 'x'"), emulated(90):
        add_kernel[(1,)](x[:250], y, out, 256, BLOCK=256)
