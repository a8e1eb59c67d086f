"""Shared prefixes as levels of a cascade against dense float64 attention over each request's whole keys."""

from __future__ import annotations

import pytest
import torch
from dense_attention import dense_attention
from packed_sequences import INT32, ends

from chunkattn.compat import flashinfer
from chunkattn.testing import assert_rows_close

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 32, 8
Q_LENS = [2, 5, 1, 3]
# Keys of each level and the requests that share them, in order.
LEVELS = {
    1: [([13, 5, 1, 20], [1, 1, 1, 1])],
    2: [([21], [4]), ([13, 5, 1, 20], [1, 1, 1, 1])],
    3: [([21], [4]), ([9, 16], [3, 1]), ([13, 5, 1, 20], [1, 1, 1, 1])],
}


class Cascade:
    """Scattered pages of every level's keys, NaN where nothing is stored, and each request's keys in one piece."""

    def __init__(self, levels, layout, dtype):
        torch.manual_seed(0)
        pages = sum(-(-n // PAGE) for lengths, _ in levels for n in lengths)
        order = torch.randperm(pages + 3).to(INT32)
        cache = torch.full((pages + 3, 2, PAGE, KV_HEADS, DIM), float("nan")).to(dtype)
        self.tables = [], [], [], []  # of queries, pages of each, pages, last page lengths: a level each
        self.keys, taken = [torch.empty(2, 0, KV_HEADS, DIM).to(dtype) for _ in Q_LENS], 0
        for lengths, shared_by in levels:
            counts = [-(-n // PAGE) for n in lengths]
            first, queries = 0, []
            for n, count, sharers in zip(lengths, counts, shared_by):
                kv = torch.randn(2, n, KV_HEADS, DIM).to(dtype)
                for position in range(n):
                    cache[order[taken + position // PAGE], :, position % PAGE] = kv[:, position]
                taken += count
                queries.append(sum(Q_LENS[first : first + sharers]))
                for request in range(first, first + sharers):
                    self.keys[request] = torch.cat([self.keys[request], kv], 1)
                first += sharers
            last = torch.tensor([(n - 1) % PAGE + 1 for n in lengths], dtype=INT32)
            pieces = ends(queries), ends(counts), order[taken - sum(counts) : taken], last
            for table, piece in zip(self.tables, pieces):
                table.append(piece)
        self.cache = cache if layout == "NHD" else cache.transpose(2, 3).contiguous()
        self.q = torch.randn(sum(Q_LENS), HEADS, DIM).to(dtype)

    def expected(self, **options):
        return torch.cat([dense_attention(q, *kv, **options)[0] for q, kv in zip(self.q.split(Q_LENS), self.keys)])


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    ("dtype", "options", "want"),
    [
        (torch.float16, {}, {}),
        (torch.bfloat16, {"causal": True}, {"causal": True}),
        (
            torch.float32,
            {"causal": True, "logits_soft_cap": 2.0, "sm_scale": 0.3},
            {"causal": True, "softcap": 2.0, "scale": 0.3},
        ),
    ],
)
def test_levels_are_one_attention(levels, layout, dtype, options, want):
    cascade = Cascade(LEVELS[levels], layout, dtype)
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(levels, torch.empty(1 << 16, dtype=torch.uint8), layout)
    wrapper.plan(*cascade.tables, HEADS, KV_HEADS, DIM, PAGE, q_data_type=dtype, **options)
    expected = cascade.expected(**want)
    assert_rows_close(wrapper.run(cascade.q, cascade.cache), expected)
    assert_rows_close(wrapper.forward(cascade.q, tuple(cascade.cache.unbind(1))), expected)


@pytest.mark.parametrize(
    ("argument", "tensors", "named"),
    [
        (0, [ends([11]), ends([2, 5, 1])], "qo_indptr_arr: expected 5 entries"),
        (0, [ends([11]), ends([2, -5, 1, 13])], "qo_indptr_arr: expected rising prefix sums"),
        (1, [ends([3]), ends([2, 1, 1])], "paged_kv_indptr_arr: expected 5 entries"),
        (2, [ends([3, 0])[:2].long(), ends([2, 1, 1, 3])], "paged_kv_indices_arr: expected torch.int32"),
        (2, [ends([3, 0]), torch.full((6,), 99, dtype=INT32)], "paged_kv_indices_arr: expected a page id from 0 to 12"),
        (3, [ends([3])], "paged_kv_last_page_len: expected 2 tensors"),
    ],
)
def test_errors_blame_the_list(argument, tensors, named):
    cascade = Cascade(LEVELS[2], "NHD", torch.float16)
    cascade.tables[argument][:] = tensors
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, torch.empty(0, dtype=torch.uint8))

    def plan_and_run():
        wrapper.plan(*cascade.tables, HEADS, KV_HEADS, DIM, PAGE)
        wrapper.run(cascade.q, cascade.cache)

    with pytest.raises((ValueError, TypeError), match=rf"^{named}"):
        plan_and_run()


def test_a_cascade_has_a_level():
    with pytest.raises(ValueError, match=r"^num_levels: expected at least 1, got 0"):
        flashinfer.MultiLevelCascadeAttentionWrapper(0, torch.empty(0, dtype=torch.uint8))
