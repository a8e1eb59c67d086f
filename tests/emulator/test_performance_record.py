"""Counters: right on small kernels whose figures are known, and compared with the baselines of larger ones."""

from __future__ import annotations

import pytest
import torch

from . import native, performance_record, snippet, triton_driver
from .launch import Options, PtxModule

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))
COUNTED = Options(count_memory=True)
MODULE = ".shared .align 1024 .b8 tile[8192];"


def counters(body: str, **arguments) -> dict[str, int]:
    _, result = snippet.run(body, module=MODULE, options=COUNTED, **arguments)
    return result.require_clean().counters


@pytest.mark.parametrize(("stride", "wavefronts"), [(4, 1), (8, 2), (16, 4), (128, 32), (132, 1)])
def test_bank_conflicts(stride: int, wavefronts: int) -> None:
    body = f"mov.u32 %r1, tile; mad.lo.u32 %r2, %lane, {stride}, %r1; st.shared.u32 [%r2], %lane;"
    assert counters(body)["shared_wavefronts"] == wavefronts


def test_broadcast_is_no_conflict() -> None:
    body = "mov.u32 %r1, tile; st.shared.u32 [%r1], %r1; bar.warp.sync -1; ld.shared.u32 %r2, [%r1];"
    assert counters(body)["shared_wavefronts"] == 2


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (8, 8), (32, 32), (0, 1)])
def test_global_sectors(stride: int, sectors: int) -> None:
    values = torch.zeros(512, dtype=torch.int32)
    values = values[(-values.data_ptr() % 32) // 4 :]
    body = (
        f"mul.lo.u32 %r1, %lane, {stride}; cvt.u64.u32 %rd1, %r1; add.s64 %rd1, %in, %rd1; ld.global.u32 %r2, [%rd1];"
    )
    figures = counters(body, inputs=values)
    assert figures["global_sectors"] == sectors
    assert figures["global_bytes_read"] == 128


def test_matrix_flops() -> None:
    registers = ", ".join(["%r1"] * 4)
    zero = "mov.u32 %r1, 0; mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;"
    body = f"""{zero} mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
      {{%f1, %f2, %f3, %f4}}, {{{registers}}}, {{%r1, %r1}}, {{%f1, %f2, %f3, %f4}};"""
    assert counters(body)["matrix_flops"] == 2 * 16 * 8 * 16


def test_growth_is_named() -> None:
    before = {"counters": {"shared_wavefronts": 100, "barriers": 4}, "resources": {"registers": 64, "spill_stores": 0}}
    now = {"counters": {"shared_wavefronts": 200, "barriers": 4}, "resources": {"registers": 65, "spill_stores": 8}}
    assert performance_record.growth(now, before) == [
        "counters.shared_wavefronts: 100 -> 200",
        "resources.spill_stores: 0 -> 8",
    ]


@pytest.mark.skipif(not triton_driver.available(), reason="triton is not installed")
@pytest.mark.parametrize("arch", [80, 90])
def test_attention_against_its_baseline(arch: int) -> None:
    import triton

    from .triton_cases import AttentionCase, attention_kernel

    if triton.__version__ != "3.6.0":
        pytest.skip("the baselines are those of Triton 3.6.0")
    kernel = attention_kernel(arch, 64, 64, 4)
    result = AttentionCase(kernel, ((64, 256),)).launch(PtxModule(kernel.ptx), COUNTED)
    name = f"triton-attention-d64-sm{arch}"
    now = performance_record.record(result.require_clean(), kernel.ptx, "sm_90a" if arch == 90 else "sm_80")
    performance_record.require_no_growth(name, now)
