"""The comparison accepts rounding and refuses everything that was ever mistaken for a right answer."""

from __future__ import annotations

import math

import pytest
import torch

from chunkattn.testing import (
    AttentionCase,
    assert_bitwise_equal,
    assert_lse_close,
    assert_rows_close,
    assert_state_close,
    attention_oracle,
    build,
    laws,
    row_budget,
    row_errors,
)

CASE = AttentionCase(
    "chunk and decodes",
    (37, 1, 5, 1),
    (600, 257, 40, 1100),
    num_q_heads=4,
    num_kv_heads=2,
    window=(300, -1),
    softcap=3.0,
    alibi="head",
    sinks=True,
    scale_mode="head",
)


@pytest.fixture(scope="module")
def inputs():
    return build(CASE)


@pytest.fixture(scope="module")
def expected(inputs):
    return inputs.expected()


def rounded(state, dtype=torch.bfloat16):
    return state[0].to(dtype), state[1].float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_accepts_the_rounded_oracle(expected, dtype):
    assert_state_close(rounded(expected, dtype), expected)


def _mean_of_values(inputs, expected):
    return attention_oracle(inputs.q * 0, *inputs.batch()[1:], k_scale=inputs.k_scale, v_scale=inputs.v_scale)[0]


CORRUPTIONS = {
    "zeros": lambda inputs, out: out * 0,
    "nan everywhere": lambda inputs, out: out * math.nan,
    "one nan": lambda inputs, out: torch.where(torch.arange(out.numel()).view(out.shape) == 777, math.nan, out),
    "mean of v": _mean_of_values,
    "tokens permuted": lambda inputs, out: out[torch.randperm(len(out), generator=torch.Generator().manual_seed(1))],
    "tokens shifted": lambda inputs, out: out.roll(1, 0),
    "heads shifted": lambda inputs, out: out.roll(1, 1),
    "lanes shifted": lambda inputs, out: out.roll(1, 2),
    "one row scaled by 1 %": lambda inputs, out: torch.cat([out[:-1], out[-1:] * 1.01]),
    "negated": lambda inputs, out: -out,
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_refuses_corrupted_outputs(inputs, expected, name):
    wrong = CORRUPTIONS[name](inputs, expected[0]).to(torch.bfloat16)
    with pytest.raises(AssertionError, match="out"):
        assert_rows_close(wrong, expected[0])


WRONG_SEMANTICS = {
    "window one wider": {"window": (301, -1)},
    "window one narrower": {"window": (299, -1)},
    "no window": {"window": (-1, -1)},
    "not causal": {"causal": False},
    "no softcap": {"softcap": 0.0},
    "other softcap": {"softcap": 3.5},
    "scale of a padded head dim": {"softmax_scale": 80**-0.5},
    "no sinks": {"sinks": None},
    "no alibi": {"alibi_slopes": None},
    "no k scale": {"k_scale": None},
    "no v scale": {"v_scale": None},
}


@pytest.mark.parametrize("name", WRONG_SEMANTICS)
def test_refuses_wrong_semantics(inputs, expected, name):
    wrong = rounded(attention_oracle(*inputs.batch(), **{**inputs.semantics(), **WRONG_SEMANTICS[name]}))
    with pytest.raises(AssertionError):
        assert_rows_close(wrong[0], expected[0])


def test_refuses_top_left_causal_alignment():
    case = AttentionCase("chunk", (5,), (12,))
    inputs = build(case)
    top_left = []
    for row in range(5):
        batch = (inputs.q[row : row + 1], *inputs.batch()[1:4], torch.tensor([0, 1]), torch.tensor([row + 1]))
        top_left.append(attention_oracle(*batch)[0])
    with pytest.raises(AssertionError):
        assert_rows_close(torch.cat(top_left).to(torch.bfloat16), inputs.expected()[0])


def test_refuses_one_dropped_key_in_a_thousand(inputs, expected):
    case = AttentionCase("decode", (1,), (1025,), num_q_heads=1, num_kv_heads=1)
    full = build(case)
    shorter = attention_oracle(*full.batch()[:5], torch.tensor([1024]))
    with pytest.raises(AssertionError):
        assert_rows_close(shorter[0].to(torch.bfloat16), full.expected()[0])
    with pytest.raises(AssertionError):
        assert_lse_close(shorter[1].float(), full.expected()[1])


PLANTED = {
    "one key skipped": lambda scores: scores[..., 1:],
    "an exponential good to 2^-18": lambda scores: scores + 2.0**-18 * torch.sin(97.0 * scores),
    "a score in bfloat16": lambda scores: scores.bfloat16().double(),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_refuses_faults_of_float32_kernels(fault):
    """2048 keys, D 128, default scale: what a correct kernel does passes with a margin of two, these do not."""
    source = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, 128, generator=source, dtype=torch.float64) for n in (16, 2048, 2048))
    scores = q @ k.T * 128**-0.5
    expected = torch.softmax(scores, -1) @ v
    correct = torch.softmax((q.float() @ k.float().T * 128**-0.5), -1) @ v.float()
    budget = row_budget(torch.float32, score_deviation=1.0)
    assert_rows_close(correct, expected, budget=budget / 2)
    wrong = PLANTED[fault](scores)
    faulty = torch.softmax(wrong, -1) @ v[v.shape[0] - wrong.shape[-1] :]
    with pytest.raises(AssertionError, match="rows exceed the row error"):
        assert_rows_close(faulty.float(), expected, budget=budget)


def test_the_float32_budget_follows_the_scores():
    half = torch.finfo(torch.float32).eps / 2
    assert row_budget(torch.float32, 0.1) == row_budget(torch.float32, 1.0) == 48 * half
    assert row_budget(torch.float32, 2.0) == 96 * half
    assert row_budget(torch.float32, 5.0) == row_budget(torch.float32) == 128 * half
    assert row_budget(torch.bfloat16, 5.0) == torch.finfo(torch.bfloat16).eps / 2


def test_refuses_nan_where_the_oracle_has_none_whatever_the_budget(expected):
    wrong = expected[0].clone()
    wrong[0, 0, 0] = math.inf
    with pytest.raises(AssertionError, match=r"\+inf"):
        assert_rows_close(wrong, expected[0], budget=math.inf)


def test_expects_nan_where_the_oracle_has_it():
    expected = torch.tensor([[[1.0, math.nan]]])
    assert_rows_close(torch.tensor([[[1.0, math.nan]]]), expected)
    with pytest.raises(AssertionError, match="NaN"):
        assert_rows_close(torch.tensor([[[1.0, 0.0]]]), expected)


def test_empty_rows_must_be_exactly_zero():
    expected = torch.zeros(1, 1, 8)
    assert_rows_close(torch.zeros(1, 1, 8), expected)
    with pytest.raises(AssertionError):
        assert_rows_close(torch.full((1, 1, 8), 1e-30), expected)


def test_row_errors_survive_extreme_magnitudes():
    expected = torch.tensor([[1e-200, 0.0], [1e200, 1e200]], dtype=torch.float64)
    assert row_errors(expected, expected).tolist() == [0, 0]
    assert row_errors(expected * 1.5, expected).tolist() == pytest.approx([0.5, 0.5])


def test_message_names_the_worst_token_and_head(expected):
    wrong = expected[0].clone()
    wrong[7, 2] *= 1.5
    wrong[9, 1] *= 1.1
    with pytest.raises(AssertionError, match=r"2 of \d+ rows .* token 7 head 2 with 0.5"):
        assert_rows_close(wrong.to(torch.bfloat16), expected[0])


def test_lse_rule():
    assert_lse_close(torch.tensor([[1000.0]]), torch.tensor([[1000.005]]).double())
    for wrong, right in ((1e-3, 0.0), (1000.05, 1000.0), (0.0, -math.inf), (-math.inf, 0.0), (math.nan, 0.0)):
        with pytest.raises(AssertionError, match="lse"):
            assert_lse_close(torch.tensor([[wrong]]), torch.tensor([[right]]))
    with pytest.raises(AssertionError, match="dtype"):
        assert_lse_close(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 1))


def test_lse_in_base_two_is_refused(expected):
    with pytest.raises(AssertionError):
        assert_lse_close((expected[1] / math.log(2)).float(), expected[1])


def test_bitwise_equality():
    nan = torch.tensor([math.nan])
    assert_bitwise_equal(nan, nan.clone())
    with pytest.raises(AssertionError, match="1 of 1 values differ"):
        assert_bitwise_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    with pytest.raises(AssertionError):
        assert_bitwise_equal(torch.tensor([1.0]), torch.tensor([1.0]).double())


def test_laws_refuse_what_breaks_them():
    """Operators that read dead memory, depend on neighbours, or leave rows unwritten."""
    case = AttentionCase("laws", (3, 1), (9, 5), num_q_heads=1, num_kv_heads=1, head_dim=16, invariant=True)
    case = case.but(dtype=torch.float32)
    inputs = build(case)

    def right(inputs, out=None, lse=None, workspace=None):
        state = rounded(inputs.expected(), torch.float32)
        if out is None:
            return state
        out.copy_(state[0])
        lse.copy_(state[1])
        return out, lse

    def depends_on_batch(inputs, **_):
        out, lse = right(inputs)
        return out * (1 + 1e-6 * len(out)), lse

    def reads_dead_memory(inputs, **_):
        out, lse = right(inputs)
        return out + inputs.v_cache.sum(), lse

    def depends_on_pages(inputs, **_):
        out, lse = right(inputs)
        return out * (1 + 1e-6 * inputs.block_table[0, 0]), lse

    def leaves_first_row(inputs, out=None, lse=None, workspace=None):
        if out is None:
            return right(inputs)
        state = right(inputs)
        out[1:].copy_(state[0][1:])
        lse.copy_(state[1])
        return out, lse

    laws.check_repeatable(right, inputs)
    laws.check_page_order(right, case)
    laws.check_dead_memory(right, case)
    laws.check_outputs_overwritten(right, inputs)
    laws.check_chunking(right, inputs)
    laws.check_neighbours(right, inputs)
    for law, wrong, subject in (
        (laws.check_dead_memory, reads_dead_memory, case),
        (laws.check_page_order, depends_on_pages, case),
        (laws.check_outputs_overwritten, leaves_first_row, inputs),
        (laws.check_chunking, depends_on_batch, inputs),
        (laws.check_neighbours, depends_on_batch, inputs),
    ):
        with pytest.raises(AssertionError):
            law(wrong, subject)
