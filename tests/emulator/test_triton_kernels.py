"""Attention and TMA GEMM in Triton: right and clean under many schedules."""

from __future__ import annotations

import pytest

from . import native, triton_driver
from .launch import Options, PtxModule

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

from .triton_cases import AttentionCase, GemmCase, attention_kernel, tma_gemm_kernel

RAGGED = ((64, 256), (1, 300), (37, 37), (100, 211), (3, 3))


def cases() -> dict[str, AttentionCase | GemmCase]:
    return {
        "attention sm_80 d64": AttentionCase(attention_kernel(80, 64, 64, 4), RAGGED),
        "attention sm_90 d64": AttentionCase(attention_kernel(90, 64, 64, 4), RAGGED),
        "attention sm_90 d128": AttentionCase(attention_kernel(90, 128, 128, 8), ((128, 256), (5, 77))),
        "tma gemm": GemmCase(tma_gemm_kernel(), (200, 136, 192)),
    }


@pytest.mark.parametrize("name", cases())
def test_clean_and_right_over_seeds(name: str) -> None:
    case = cases()[name]
    module = PtxModule(case.kernel.ptx)
    for seed in range(20):
        assert case.run(module, Options.for_seed(seed)) == set(), f"seed {seed}"


@pytest.mark.parametrize("fill", [0x00, 0x4B, 0xFF])
def test_result_does_not_depend_on_old_memory(fill: int) -> None:
    """Zeros, large finite values and NaN in shared memory and registers give the same bits."""
    case = cases()["attention sm_90 d64"]
    module = PtxModule(case.kernel.ptx)
    case.launch(module, Options()).require_clean()
    first = case.out.clone()
    case.launch(module, Options(shared_fill=fill, register_fill=fill)).require_clean()
    assert (case.out.view(-1) == first.view(-1)).all()


def test_short_cache_is_named() -> None:
    case = cases()["attention sm_80 d64"]
    result = case.launch(PtxModule(case.kernel.ptx), Options(), hidden={"K": 64})
    assert result.stopped is not None
    assert "past the end of 'K'" in result.stopped.message
    assert "triton_attention.py:" in result.stopped.message
