"""merge_states: closed forms of public bug reports, strides, aliasing, agreement with the oracle (d16, d17, d23)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import chunkattn
from chunkattn.testing import (
    AttentionCase,
    assert_bitwise_equal,
    assert_rows_close,
    assert_state_close,
    build,
    merge_states_oracle,
)

INF, NAN, LN2 = math.inf, math.nan, math.log(2)


def state(out, lse, dtype=torch.float32):
    return torch.full((1, 1, 8), float(out), dtype=dtype), torch.full((1, 1), float(lse))


def random_state(tokens, heads, dim, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(tokens, heads, dim, generator=generator).to(dtype)
    return out, 3.0 * torch.randn(tokens, heads, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("a", "b", "out", "lse"),
    [
        ((1, math.log(8)), (0, LN2), 0.8, 2.302585),
        ((NAN, -INF), (7, 2.0), 7.0, 2.0),
        ((7, 2.0), (NAN, -INF), 7.0, 2.0),
        ((INF, -INF), (7, 2.0), 7.0, 2.0),
        ((NAN, -INF), (NAN, -INF), 0.0, -INF),
        ((0, -INF), (0, -INF), 0.0, -INF),
        ((1, 1000.0), (5, 0.0), 1.0, 1000.0),
        ((1, -1000.0), (5, -1001.0), 2.075766, -999.686738),
    ],
)
def test_d16_numbers(a, b, out, lse, dtype, backend):
    got = chunkattn.merge_states(*state(*a, dtype), *state(*b, dtype), backend=backend)
    expected = torch.full((1, 1, 8), out).double(), torch.full((1, 1), lse).double()
    # One lane's number: its own rounding may use up the whole budget of the row.
    budget = torch.finfo(dtype).eps if dtype != torch.float32 else None
    assert_state_close(got, expected, budget=budget)


def test_d16_an_infinite_lse_is_kept(backend):
    for pair in ((state(1, INF), state(2, 0.0)), (state(2, -INF), state(1, INF)), (state(1, INF), state(1, INF))):
        out, lse = chunkattn.merge_states(*pair[0], *pair[1], backend=backend)
        assert lse.item() == INF
        assert out.isnan().all()


@pytest.mark.parametrize("dim", [128, 192, 8, 256, 40])
def test_d17_any_order_and_layout(dim, backend):
    states = [(1.0, 0.0), (10.0, LN2), (100.0, math.log(4))]
    for order in itertools.permutations(range(3)):
        pieces = []
        for place, index in enumerate(order):
            value, weight = states[index]
            wide = torch.full((5, 3, dim + (64 if place % 2 else 0)), NAN)
            out = wide[..., :dim]
            out.fill_(value)
            lse = torch.full((3, 5), weight).T if place % 2 else torch.full((5, 3), weight)
            pieces.append((out, lse))
        merged = chunkattn.merge_states(*pieces[0], *pieces[1], backend=backend)
        merged = chunkattn.merge_states(*merged, *pieces[2], backend=backend)
        shape = (5, 3, dim)
        expected = torch.full(shape, 421 / 7).double(), torch.full(shape[:2], math.log(7)).double()
        assert_state_close(merged, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_random_states_against_the_oracle(dtype, backend):
    a, b = random_state(33, 7, 72, dtype, seed=1), random_state(33, 7, 72, dtype, seed=2)
    a[1][::5] = -INF
    b[1][::7] = -INF
    a[0][::5] = NAN
    expected = merge_states_oracle(*a, *b)
    assert_state_close(chunkattn.merge_states(*a, *b, backend=backend), expected)


@pytest.mark.parametrize("dim", [192, 64])
@pytest.mark.parametrize("alias", ["a", "b"])
def test_d17_writing_over_an_input(dim, alias, backend):
    a, b = random_state(9, 5, dim, seed=1), random_state(9, 5, dim, seed=2)
    expected = merge_states_oracle(*a, *b)
    out, lse = a if alias == "a" else b
    got = chunkattn.merge_states(*a, *b, out=out, lse=lse, backend=backend)
    assert got[0].data_ptr() == out.data_ptr()
    assert_state_close(got, expected)


def test_d23_outputs_with_their_own_strides(backend):
    a, b = random_state(9, 5, 64, seed=1), random_state(9, 5, 64, seed=2)
    wide, lse = torch.full((5, 12, 70), NAN), torch.full((5, 12, 2), NAN)[..., 1].T[1:10]
    out = wide.transpose(0, 1)[1:10, :, 3:67]
    chunkattn.merge_states(*a, *b, out=out, lse=lse, backend=backend)
    assert_state_close((out, lse), merge_states_oracle(*a, *b))
    out.fill_(NAN)
    assert wide.isnan().all()


def test_neutral_states_change_nothing(backend):
    a = random_state(9, 5, 64, torch.bfloat16)
    nothing = torch.full_like(a[0], NAN), torch.full_like(a[1], -INF)
    for pair in ((a, nothing), (nothing, a)):
        got = chunkattn.merge_states(*pair[0], *pair[1], backend=backend)
        assert_bitwise_equal(got[0], a[0])
        assert_bitwise_equal(got[1], a[1])


def test_merging_a_shared_prefix_with_the_rest(backend):
    """Cascade attention: history on its own, new tokens on their own, merged."""
    case = AttentionCase("cascade", (12,), (60,), page_size=12, dtype=torch.float32)
    inputs = build(case)
    table, cu = inputs.block_table, inputs.cu_seqlens_q
    pools = inputs.k_cache, inputs.v_cache
    history = chunkattn.attention(
        inputs.q, *pools, table, cu, torch.tensor([48]).int(), causal=False, return_lse=True, backend=backend
    )
    new = chunkattn.attention(
        inputs.q, *pools, table[:, 4:], cu, torch.tensor([12]).int(), return_lse=True, backend=backend
    )
    assert_state_close(chunkattn.merge_states(*history, *new, backend=backend), inputs.expected())


def test_no_tokens(backend):
    out, lse = chunkattn.merge_states(*random_state(0, 5, 64), *random_state(0, 5, 64), backend=backend)
    assert out.shape == (0, 5, 64)
    assert lse.shape == (0, 5)


def test_the_budget_of_a_merge_is_that_of_its_dtype(backend):
    a, b = random_state(200, 4, 128, torch.bfloat16, seed=3), random_state(200, 4, 128, torch.bfloat16, seed=4)
    out, _ = chunkattn.merge_states(*a, *b, backend=backend)
    expected, _ = merge_states_oracle(*a, *b)
    assert_rows_close(out, expected)
    with pytest.raises(AssertionError):
        assert_rows_close(out.roll(1, 0), expected)
