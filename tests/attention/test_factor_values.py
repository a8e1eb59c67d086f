"""Slopes and sinks that hold no numbers: what becomes of the rows, and what debug mode says. Scales that are none."""

from __future__ import annotations

import math

import pytest
import torch

import chunkattn
from chunkattn.env import SETTINGS
from chunkattn.testing import AttentionCase, assert_state_close, build

CASE = AttentionCase("factors", (3, 1, 40), (40, 17, 300), num_q_heads=4, num_kv_heads=2)
KINDS = {
    "alibi_slopes": CASE.but(alibi="head"),
    "sinks": CASE.but(sinks=True),
}


def with_entry(arg: str, value: float, invariant: bool = False) -> tuple:
    """A batch whose first entry of one factor is `value`, and the query heads that use the entry."""
    inputs = build(KINDS[arg].but(invariant=invariant))
    options = inputs.options()
    factor = options[arg].clone()
    factor[0] = value
    return inputs, {**options, arg: factor, "return_lse": True}, 4 // len(factor)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("arg", KINDS)
def test_only_the_rows_of_that_head_are_not_finite(arg, value, invariant, backend):
    inputs, options, heads = with_entry(arg, value, invariant)
    good, good_lse = chunkattn.attention(*inputs.batch(), **{**inputs.options(), "return_lse": True}, backend=backend)
    out, lse = chunkattn.attention(*inputs.batch(), **options, backend=backend)
    # Where sums of values are not finite, decodes are done again by the prefill kernel, which rounds in another order.
    decodes = sum(CASE.q_lens[:2]) if arg == "alibi_slopes" and not invariant else 0
    assert torch.equal(out[decodes:, heads:], good[decodes:, heads:])
    assert torch.equal(lse[decodes:, heads:], good_lse[decodes:, heads:])
    expected_out, expected_lse = inputs.expected()
    assert_state_close((out[:, heads:], lse[:, heads:]), (expected_out[:, heads:], expected_lse[:, heads:]))
    if arg == "sinks" and value == -math.inf:  # as without a sink
        assert out.isfinite().all()
        without, _ = chunkattn.attention(*inputs.batch(), **{**options, "sinks": None}, backend=backend)
        assert torch.equal(out[:, :heads], without[:, :heads])
    else:
        assert not out[:, :heads].isfinite().any()


def test_a_nan_in_a_visible_key_reaches_the_rows_that_see_it(backend):
    inputs = build(CASE)
    page = int(inputs.block_table[0, 0])
    inputs.k_cache[page, 5, 0, 0] = math.nan
    out, lse = chunkattn.attention(*inputs.batch(), return_lse=True, backend=backend)
    assert out[:3, :2].isnan().all()
    assert lse[:3, :2].isnan().all()
    assert out[:, 2:].isfinite().all()
    assert out[3:].isfinite().all()


@pytest.fixture
def debug():
    object.__setattr__(SETTINGS, "debug", True)
    yield
    object.__setattr__(SETTINGS, "debug", False)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("arg", KINDS)
def test_debug_mode_refuses(arg, value, backend, debug):
    inputs, options, _ = with_entry(arg, value)
    chunkattn.attention(*inputs.batch(), **inputs.options(), backend=backend)  # a good call, remembered or not
    if arg == "sinks" and value == -math.inf:
        chunkattn.attention(*inputs.batch(), **options, backend=backend)
        return
    out = torch.full_like(inputs.q, 7.0)
    with pytest.raises(ValueError, match=rf"^{arg}: expected numbers.*, got {value} at \[0\]"):
        chunkattn.attention(*inputs.batch(), **options, out=out, backend=backend)
    assert (out == 7.0).all()


NO_SCALES = [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.5]
GRANULARITIES = [((), ""), ((2,), " for head 1")]


@pytest.mark.parametrize("value", NO_SCALES)
@pytest.mark.parametrize(("shape", "where"), GRANULARITIES, ids=["tensor", "head"])
@pytest.mark.parametrize("arg", ["k_scale", "v_scale"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "e4m3"])
def test_what_is_no_scale_is_refused(arg, shape, where, value, dtype, backend):
    """A zero or negative scale gives wrong numbers, and none that look wrong; so it is refused and nothing written."""
    inputs = build(CASE.but(kv_dtype=dtype, scale_mode="head"), poison="zero")
    scales = {"k_scale": torch.full(shape, 0.5), "v_scale": torch.full(shape, 0.5)}
    k = torch.ones(44, 2, 64).bfloat16()
    batch = (k, k, inputs.k_cache, inputs.v_cache, *inputs.batch()[3:])
    chunkattn.append_kv(*batch, **scales, backend=backend)  # good calls, remembered or not
    chunkattn.attention(*inputs.batch(), **scales, backend=backend)
    scales[arg].view(-1)[-1] = value
    before = inputs.k_cache.clone(), inputs.v_cache.clone()
    out = torch.full_like(inputs.q, 7.0)
    message = rf"^{arg}: expected finite numbers above 0, got {value:g}{where}$"
    with pytest.raises(ValueError, match=message):
        chunkattn.append_kv(*batch, **scales, backend=backend)
    with pytest.raises(ValueError, match=message):
        chunkattn.attention(*inputs.batch(), **scales, out=out, backend=backend)
    assert (out == 7.0).all()
    assert torch.equal(inputs.k_cache.view(torch.int8), before[0].view(torch.int8))
    assert torch.equal(inputs.v_cache.view(torch.int8), before[1].view(torch.int8))


def test_debug_mode_lets_dead_scales_be(backend, debug):
    """Scales of single tokens lie in the pool: those of dead slots may hold anything."""
    inputs = build(CASE.but(kv_dtype=torch.int8, scale_mode="token_head"))
    assert inputs.options()["k_scale"].isnan().any()
    assert chunkattn.attention(*inputs.batch(), **inputs.options(), backend=backend).isfinite().all()
