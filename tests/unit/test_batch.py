"""Batches from lists: right tensors, or one sentence that names the list at fault."""

from __future__ import annotations

import pytest

from chunkattn import Batch


def test_lists_become_tensors():
    batch = Batch.from_lists([2, 0, 1], [5, 0, 9], [[3], [], [7, 1]])
    assert batch.cu_seqlens_q.tolist() == [0, 2, 2, 3]
    assert batch.seq_lens.tolist() == [5, 0, 9]
    assert batch.block_table.tolist() == [[3, 0], [0, 0], [7, 1]]


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        (([1], [1, 2], [[0], [1]]), ValueError, "kv_lens: expected 1 entries.*got 2"),
        (([1], [1], []), ValueError, "pages: expected 1 entries.*got 0"),
        (([-1], [3], [[0]]), ValueError, "q_lens: expected numbers from 0 .*got -1"),
        (([1], [2**31], [[0]]), ValueError, "kv_lens: expected numbers .*got 2147483648"),
        (([1], [3], [[-4]]), ValueError, "pages: expected numbers .*got -4"),
        (([1.5], [3], [[0]]), TypeError, "q_lens: expected integers, got 1.5"),
        (([1], ["a"], [[0]]), TypeError, "kv_lens: expected integers, got 'a'"),
    ],
)
def test_bad_lists_are_refused(lists, error, message):
    with pytest.raises(error, match=message):
        Batch.from_lists(*lists)
