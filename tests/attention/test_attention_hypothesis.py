"""Random batches with every option at random, against the oracle; what fails is shrunk to the smallest case."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chunkattn
from chunkattn.testing import AttentionCase, assert_state_close, build, laws

QUANTIZED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


@st.composite
def cases(draw: st.DrawFn) -> AttentionCase:
    num_requests = draw(st.integers(0, 5))
    q_lens = draw(st.lists(st.integers(0, 40), min_size=num_requests, max_size=num_requests))
    history = draw(st.lists(st.integers(-3, 300), min_size=num_requests, max_size=num_requests))
    num_kv_heads = draw(st.integers(1, 3))
    kv_dtype = draw(st.sampled_from((None, None, *QUANTIZED)))
    invariant = draw(st.booleans())
    return AttentionCase(
        "random",
        tuple(q_lens),
        tuple(max(0, q + h) for q, h in zip(q_lens, history, strict=True)),
        num_q_heads=num_kv_heads * draw(st.integers(1, 9)),
        num_kv_heads=num_kv_heads,
        head_dim=8 * draw(st.integers(1, 32)),
        # Two lanes of one row round alike too often for the row rule: at least 32.
        head_dim_v=8 * draw(st.integers(4, 32)),
        page_size=draw(st.sampled_from((1, 2, 3, 7, 16, 33, 64, 100, 256))),
        dtype=draw(st.sampled_from((torch.bfloat16, torch.float16, torch.float32))),
        kv_dtype=kv_dtype,
        scale_mode="none" if kv_dtype is None else draw(st.sampled_from(("tensor", "head", "token_head"))),
        layout=draw(st.sampled_from(("nhd", "hnd", "fused", "layers", "lanes"))),
        q_layout=draw(st.sampled_from(("contiguous", "fused_qkv", "head_major", "offset"))),
        causal=draw(st.booleans()),
        window=(draw(st.sampled_from((-1, 0, 1, 17, 130))), draw(st.sampled_from((-1, 0, 3, 50)))),
        softcap=draw(st.sampled_from((0.0, 2.0, 40.0))),
        alibi=draw(st.sampled_from((None, "head", "request"))),
        sinks=draw(st.booleans()),
        tree=draw(st.booleans()),
        invariant=invariant,
        num_splits=None if invariant else draw(st.sampled_from((None, 1, 2, 5))),
        padding=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 10)),
    )


SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


def check(case: AttentionCase, attend: laws.AttendInto) -> None:
    inputs = build(case)
    out, lse = inputs.empty_state()
    attend(inputs, out=out, lse=lse)
    assert_state_close((out, lse), inputs.expected(), budget=case.row_budget, context=f"{case}: ")


@settings(max_examples=40, **SETTINGS)
@given(case=cases())
def test_random_cases(case, attend):
    check(case, attend)


@pytest.mark.full
@settings(max_examples=400, **SETTINGS)
@given(case=cases())
def test_random_cases_full(case, attend):
    check(case, attend)


@settings(max_examples=12, **SETTINGS)
@given(case=cases())
def test_random_laws(case, attend):
    laws.check_dead_memory(attend, case)
    laws.check_page_order(attend, case)
    laws.check_repeatable(attend, build(case))


@settings(max_examples=12, **SETTINGS)
@given(case=cases(), cut=st.integers(1, 20))
def test_random_cuts_in_invariant_mode(case, cut, attend):
    # Only causal rows see the same keys in a chunk as in the whole prompt.
    kv_lens = tuple(map(max, case.q_lens, case.kv_lens))
    case = case.but(tree=False, causal=True, invariant=True, num_splits=None, padding=0, kv_lens=kv_lens)
    inputs = build(case)
    laws.check_chunking(attend, inputs, chunk_sizes=(cut,))


@settings(max_examples=25, **SETTINGS)
@given(case=cases())
def test_a_plan_changes_no_bit(case, backend):
    """Planned beforehand or inside the call: the same work in the same order."""
    case = case.but(tree=False)
    inputs = build(case)
    plan = chunkattn.plan(
        inputs.cu_seqlens_q,
        inputs.seq_lens,
        num_q_heads=case.num_q_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        head_dim_v=case.value_dim,
        page_size=case.page_size,
        dtype=case.dtype,
        causal=case.causal,
        window=case.window,
        invariant=case.invariant,
        num_splits=case.num_splits,
        backend=backend,
    )
    state = chunkattn.attention(*inputs.batch(), **inputs.options(), return_lse=True, plan=plan)
    assert_state_close(state, inputs.expected())
