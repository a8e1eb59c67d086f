"""The float64 oracle against numbers worked out by hand, and against itself."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from chunkattn.testing import (
    BATCHES,
    AttentionCase,
    assert_rows_close,
    attention_oracle,
    build,
    lanes_expected,
    lanes_probe,
    merge_states_oracle,
    needle_expected,
    needle_probe,
    random_contents,
    uniform_probe,
    visible_positions,
)

LN2 = math.log(2)


def probe(q_lens, kv_lens, **options):
    """The uniform probe's oracle state of one KV head in float32: mean visible position and log of their number."""
    case = AttentionCase("probe", q_lens, kv_lens, num_q_heads=1, num_kv_heads=1, head_dim=16, dtype=torch.float32)
    inputs = build(case.but(**options), uniform_probe(case))
    out, lse = inputs.expected()
    return inputs, out[:, 0, 0].tolist(), lse[:, 0].tolist()


def test_causal_is_aligned_at_the_bottom_right():
    _, out, lse = probe((3,), (128,))
    assert out == pytest.approx([63.5, 64.0, 64.5])
    assert lse == pytest.approx([math.log(126), math.log(127), math.log(128)])
    _, out, lse = probe((2,), (5,), page_size=4)
    assert out == pytest.approx([2.5, 3.0])


def test_rows_before_the_first_key_see_nothing():
    _, out, lse = probe((5,), (2,))
    assert out == pytest.approx([0, 0, 0, 1, 1.5])
    assert lse == pytest.approx([-math.inf] * 3 + [0, LN2])


def test_ragged_batch_keeps_requests_apart():
    _, out, lse = probe((1, 7, 33, 1, 16), (17, 7, 65, 1, 48))
    last = [0, 7, 40, 41, 57]
    assert [out[i] for i in last] == pytest.approx([9, 4, 33, 1, 24.5])
    assert [round(math.exp(lse[i])) for i in (0, 1, 8, 41, 42)] == [17, 1, 33, 1, 33]


def test_window_counts_keys_beside_the_query():
    _, out, lse = probe((3,), (10,), window=(3, -1))
    assert out == pytest.approx([6.5, 7.5, 8.5])
    assert lse == pytest.approx([math.log(4)] * 3)
    _, out, lse = probe((300,), (4096,), window=(333, -1), causal=False)
    assert (out[0], out[-1]) == pytest.approx((3780.0, 3929.5))
    assert [round(math.exp(lse[i])) for i in (0, 127, 128, 299)] == [633, 506, 505, 334]


def test_softcap_before_mask():
    _, _out, lse = probe((1,), (65,), softcap=1.0)
    assert lse == pytest.approx([math.log(65)])


def test_softcap_after_scale():
    case = AttentionCase("two keys", (1,), (2,), num_q_heads=1, num_kv_heads=1, head_dim=8, dtype=torch.float32)
    contents = random_contents(case)
    contents.q.zero_()
    contents.q[0, 0, 0] = 8.0
    for tensor, values in ((contents.keys[0], (1.0, 0.0)), (contents.values[0], (1.0, 0.0))):
        tensor.zero_()
        tensor[:, 0, 0] = torch.tensor(values)
    out = {}
    for softcap in (0.0, 2.0):
        case = case.but(softmax_scale=0.5, softcap=softcap)
        out[softcap] = build(case, contents).expected()[0][0, 0, 0].item()
    assert out == pytest.approx({0.0: 0.982014, 2.0: 0.873034}, abs=1e-6)


def test_alibi_counts_from_the_query():
    case = AttentionCase(
        "alibi", (4,), (10,), num_q_heads=1, num_kv_heads=1, head_dim=16, dtype=torch.float32, alibi="head"
    )
    inputs = build(case, uniform_probe(case))
    semantics = {**inputs.semantics(), "alibi_slopes": torch.tensor([0.5])}
    out, lse = attention_oracle(*inputs.batch(), **semantics)
    assert out[:, 0, 0].tolist() == pytest.approx([5.676470, 6.607765, 7.559610, 8.526342], abs=1e-6)
    assert lse[:, 0].tolist() == pytest.approx([0.902089, 0.914267, 0.921581, 0.925991], abs=1e-6)


@pytest.mark.parametrize(("kv_len", "out", "lse"), [(3, 1.2, math.log(5)), (0, 0.0, LN2)])
def test_sink_enters_the_denominator_once(kv_len, out, lse):
    case = AttentionCase(
        "sink", (1,), (kv_len,), num_q_heads=1, num_kv_heads=1, head_dim=16, dtype=torch.float32, sinks=True
    )
    inputs = build(case, uniform_probe(case))
    state = attention_oracle(*inputs.batch(), **{**inputs.semantics(), "sinks": torch.tensor([LN2])})
    assert state[0][0, 0, 0].item() == pytest.approx(out)
    assert state[1][0, 0].item() == pytest.approx(lse)


@pytest.mark.parametrize("kind", ["score", "sink"])
def test_an_infinite_score_gives_nan(kind):
    """inf - inf, in out and lse of the rows that see it: here the last of two rows, or both if it is the sink."""
    case = AttentionCase("inf", (2,), (5,), num_q_heads=1, num_kv_heads=1, head_dim=16, dtype=torch.float32)
    inputs = build(case.but(sinks=True))
    inputs.sinks[0] = math.inf if kind == "sink" else 0.0
    if kind == "score":
        inputs.q[:] = 1.0
        inputs.k_cache[int(inputs.block_table[0, 4 // case.page_size]), 4 % case.page_size] = math.inf
    out, lse = inputs.expected()
    nan = [kind == "sink", True]
    assert lse[:, 0].isnan().tolist() == nan
    assert out[:, 0].isnan().all(-1).tolist() == nan
    assert out[:, 0].isnan().any(-1).tolist() == nan


def test_tree_mask_hides_new_tokens_only():
    # Tokens 4 5 6 after a history of 4: 5 and 6 are siblings, children of 4. Bit 31 makes the word negative.
    rows = [[0b001], [0b011], [0b101 - 2**31]]
    seen = [list(visible_positions(4 + r, 4, 7, tree_row=row)) for r, row in enumerate(rows)]
    assert seen == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 6]]
    assert list(visible_positions(40, 0, 41, window=(2, -1), tree_row=[0, 1 << 7])) == [39]


def test_quantised_cache_is_multiplied_by_its_scales():
    q = torch.zeros(1, 1, 8)
    q[0, 0, 0] = 1.0
    k, v = torch.zeros(1, 16, 1, 8), torch.zeros(1, 16, 1, 8)
    k[0, 1, 0, 0] = v[0, 1, 0, 0] = 2.0
    batch = (torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 1]), torch.tensor([2]))
    for shape in ((), (1,), (1, 16, 1)):
        out, _ = attention_oracle(
            q,
            k.to(torch.float8_e4m3fn),
            v.to(torch.float8_e4m3fn),
            *batch,
            softmax_scale=math.log(3),
            k_scale=torch.full(shape, 0.5),
            v_scale=torch.full(shape, 2.0),
        )
        assert out[0, 0, 0].item() == pytest.approx(3.0)


def test_padding_rows_are_empty():
    case = AttentionCase("padded", (2, 1), (5, 9), padding=3, sinks=True, dtype=torch.float32)
    out, lse = build(case).expected()
    assert torch.count_nonzero(out[3:]) == 0
    assert torch.isneginf(lse[3:]).all()
    assert torch.isfinite(out).all()
    assert torch.isfinite(lse[:3]).all()


def test_lanes_and_needles():
    case = AttentionCase("lanes", (3, 1), (42, 17), num_q_heads=6, num_kv_heads=2, head_dim=40, dtype=torch.float32)
    assert_rows_close(build(case, lanes_probe(case)).expected()[0], lanes_expected(case), budget=1e-7)
    targets = [[0, 5, 39], [16]]
    contents = needle_probe(case, targets)
    out, _ = build(case, contents).expected()
    assert_rows_close(out, needle_expected(case, contents, targets), budget=1e-5)


@pytest.mark.parametrize("batch", BATCHES)
def test_layout_of_the_pool_does_not_matter(batch):
    q_lens, kv_lens = BATCHES[batch]
    case = AttentionCase(batch, q_lens, kv_lens, num_q_heads=2, num_kv_heads=1, head_dim=16, dtype=torch.float32)
    plain_out, plain_lse = build(case).expected()
    assert torch.isfinite(plain_out).all()
    for layout in ("hnd", "fused", "layers", "lanes"):
        out, lse = build(case.but(layout=layout, page_size=5), page_seed=3).expected()
        assert torch.equal(out, plain_out)
        assert torch.equal(lse, plain_lse)


def test_chunks_add_up_to_the_whole_prompt():
    case = AttentionCase("prompt", (100,), (100,), num_q_heads=4, num_kv_heads=2, dtype=torch.float32)
    inputs = build(case)
    whole, whole_lse = inputs.expected()
    for cuts in ([0, 37, 63, 100], [0, 64, 99, 100]):
        parts = inputs.recut([(0, a, b) for a, b in itertools.pairwise(cuts)]).expected()
        assert (parts[0] - whole).abs().max() < 1e-14
        assert (parts[1] - whole_lse).abs().max() < 1e-14


def test_merging_disjoint_keys_gives_the_whole():
    case = AttentionCase("whole", (4,), (90,), dtype=torch.float32, page_size=10)
    inputs = build(case)
    left = build(case.but(window=(-1, -1)))
    table = left.block_table
    whole = inputs.expected()
    # History of 50 keys on its own (all visible: not causal), and the last 40.
    first = attention_oracle(
        left.q, left.k_cache, left.v_cache, table, left.cu_seqlens_q, torch.tensor([50]), causal=False
    )
    second = attention_oracle(
        left.q, left.k_cache, left.v_cache, table[:, 5:], left.cu_seqlens_q, torch.tensor([40]), causal=True
    )
    merged = merge_states_oracle(*first, *second)
    assert (merged[0] - whole[0]).abs().max() < 1e-12
    assert (merged[1] - whole[1]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("a", "b", "out", "lse"),
    [
        ((1, math.log(8)), (0, LN2), 0.8, math.log(10)),
        ((math.nan, -math.inf), (7, 2.0), 7, 2.0),
        ((math.nan, -math.inf), (math.nan, -math.inf), 0, -math.inf),
        ((1, 1000.0), (5, 0.0), 1, 1000.0),
        ((1, -1000.0), (5, -1001.0), 2.075766, -999.686738),
    ],
)
def test_merge_numbers(a, b, out, lse):
    states = [(torch.full((1, 1, 8), float(o)), torch.full((1, 1), float(weight))) for o, weight in (a, b)]
    merged = merge_states_oracle(*states[0], *states[1])
    assert merged[0][0, 0, 0].item() == pytest.approx(out, abs=1e-6)
    assert merged[1][0, 0].item() == pytest.approx(lse, abs=1e-6)
