"""Batches from lists: right tensors, or one sentence that names the list at fault."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chunkattn import Batch, PagedKV


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
        ((3, 3, 3), TypeError, "q_lens: expected a list, got int"),
        (([1], None, [[0]]), TypeError, "kv_lens: expected a list, got NoneType"),
        (([1], [3], {0: [0]}), TypeError, "pages: expected a list, got dict"),
        (([1], [3], [0]), TypeError, "pages: expected a list of page ids for every request, got int"),
        (([1], [3], ["0"]), TypeError, "pages: expected a list of page ids for every request, got str"),
        (({1}, [3], [[0]]), TypeError, "q_lens: expected a list, got set"),
        (((n for n in (1,)), [3], [[0]]), TypeError, "q_lens: expected a list, got generator"),
        ((torch.tensor(1), [3], [[0]]), TypeError, "q_lens: expected a list, got Tensor"),
        (([2**31 - 1, 1], [1, 1], [[0], [0]]), ValueError, "q_lens: expected at most 2147483647 tokens together"),
    ],
)
def test_bad_lists_are_refused(lists, error, message):
    with pytest.raises(error, match=f"^{message}"):
        Batch.from_lists(*lists)


def test_tuples_ranges_arrays_and_tensors_are_lists():
    lists = ((1, 2), np.array([1, 20]), torch.tensor([[3, 4], [1, 2]]))
    batch = Batch.from_lists(*lists)
    assert batch.seq_lens.tolist() == [1, 20]
    assert batch.block_table.tolist() == [[3, 4], [1, 2]]
    assert Batch.from_lists([1], [1], [range(3)]).block_table.tolist() == [[0, 1, 2]]


NOT_FOUND = r"^device: expected one that torch finds on this machine, got '"
ABSENT = ["foo", "cuda:99", "", 99, torch.device("cuda", 99)]


@pytest.mark.parametrize("device", ABSENT)
def test_a_device_that_is_not_there_is_named(device):
    for make in (
        lambda: Batch.from_lists([1], [1], [[0]], device=device),
        lambda: PagedKV.allocate(1, 16, 1, 64, device=device),
    ):
        with pytest.raises(ValueError, match=NOT_FOUND) as caught:
            make()
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=f"{NOT_FOUND}cuda'"):
        PagedKV.allocate(1, 16, 1, 64, device="cuda")


@pytest.mark.parametrize("device", [1.5, [], True, object()])
def test_what_is_no_device_is_named(device):
    with pytest.raises(TypeError, match=f"^device: expected a torch.device or its name, got {type(device).__name__}"):
        PagedKV.allocate(1, 16, 1, 64, device=device)
