"""Every instruction set of the cpu backend that this processor has, switched inside the process."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator

import pytest
import torch
from attention_matrix import matrix

from chunkattn.testing import BATCHES, AttentionCase, assert_state_close, build, laws

HAS_NATIVE = importlib.util.find_spec("chunkattn._native") is not None
pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built")


def available() -> list[str]:
    if not HAS_NATIVE:
        return ["none"]
    from chunkattn import _native

    return list(_native.isas())


@pytest.fixture(params=available())
def attend(request: pytest.FixtureRequest) -> Iterator[laws.AttendInto]:
    """The attention operator of the cpu backend with one instruction set."""
    from chunkattn import _native

    operator = laws.operator("cpu")
    operator(build(AttentionCase("first", (1,), (1,))))  # the backend makes its own choice on its first call
    before = _native.isa()
    _native.select_isa(request.param)
    assert _native.isa() == request.param
    yield operator
    _native.select_isa(before)


@pytest.mark.parametrize("case", matrix(seed=7)[::5], ids=str)
def test_matrix(case, attend):
    inputs = build(case)
    assert_state_close(attend(inputs), inputs.expected(), budget=case.row_budget, context=f"{case}: ")


@pytest.mark.full
@pytest.mark.parametrize("case", matrix(seed=8), ids=str)
def test_matrix_full(case, attend):
    inputs = build(case)
    assert_state_close(attend(inputs), inputs.expected(), budget=case.row_budget, context=f"{case}: ")


LAWS = AttentionCase("laws", *BATCHES["mixed_with_empty"], num_q_heads=6, num_kv_heads=2, head_dim=72, page_size=24)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn, torch.int8])
def test_laws(dtype, kv_dtype, attend):
    mode = "none" if kv_dtype is None else "token_head"
    case = LAWS.but(dtype=dtype, kv_dtype=kv_dtype, scale_mode=mode, softcap=8.0, sinks=True)
    laws.check_dead_memory(attend, case)
    laws.check_page_order(attend, case)
    laws.check_outputs_overwritten(attend, build(case))


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e5m2])
@pytest.mark.parametrize(("head_dim_v", "scale_mode"), [(32, "none"), (128, "tensor"), (128, "token_head")])
def test_infinities_that_a_decode_sees_stay_infinite(head_dim_v, scale_mode, kv_dtype, attend):
    """Also where weights are multiplied in two parts, one of which may be 0 or negative."""
    case = AttentionCase(
        "decodes", (1, 1), (21, 300), num_q_heads=8, num_kv_heads=1, head_dim=64, head_dim_v=head_dim_v,
        kv_dtype=kv_dtype, scale_mode="none" if kv_dtype is None else scale_mode,
    )  # fmt: skip
    inputs = build(case)
    for request, value in enumerate((math.inf, -math.inf)):
        inputs.v_cache[inputs.block_table[request, 0], 3, :, 1] = value
    expected = inputs.expected()
    assert torch.isinf(expected[0]).sum() == 2 * 8
    assert_state_close(attend(inputs), expected, context=f"{case}: ")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_invariant_mode(dtype, attend):
    case = AttentionCase("invariant", (150, 40), (150, 700), dtype=dtype, invariant=True, alibi="head")
    inputs = build(case)
    assert_state_close(attend(inputs), inputs.expected())
    laws.check_chunking(attend, inputs)
    laws.check_neighbours(attend, inputs)
