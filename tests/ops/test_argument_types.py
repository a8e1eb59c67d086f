"""Every argument of every operator: what is of no type it takes is named in one sentence, not by the dispatcher."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import chunkattn
from chunkattn.testing import AttentionCase, build

CASE = AttentionCase("types", (3, 1), (40, 17), num_q_heads=4, num_kv_heads=2)
FACTS = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "page_size": 16, "dtype": torch.bfloat16}


def arguments_of(operator: str) -> dict[str, Any]:
    """Those of a call that is right; the others are left out."""
    step = build(CASE)
    lengths = {"cu_seqlens_q": step.cu_seqlens_q, "seq_lens": step.seq_lens}
    table = {"block_table": step.block_table, **lengths}
    caches = {"k_cache": step.k_cache, "v_cache": step.v_cache}
    state = {
        f"{name}_{one}": torch.zeros(shape) for name, shape in (("out", (3, 2, 16)), ("lse", (3, 2))) for one in "ab"
    }
    pool, pages, block = torch.zeros(8, 4), torch.tensor([0, 1]), torch.ones(2, 4)
    return {
        "attention": {"q": step.q, **caches, **table},
        "append_kv": {"k": step.q[:, :2], "v": step.q[:, :2], **caches, **table},
        "merge_states": state,
        "plan": {**lengths, **FACTS},
        "copy_pages": {"cache": pool, "source": pages, "target": pages + 2},
        "gather_pages": {"cache": pool, "pages": pages},
        "scatter_pages": {"block": block, "cache": pool, "pages": pages},
    }[operator]


OPERATORS = ("attention", "append_kv", "merge_states", "plan", "copy_pages", "gather_pages", "scatter_pages")
PLACES = [(name, argument) for name in OPERATORS for argument in inspect.signature(getattr(chunkattn, name)).parameters]


@pytest.mark.parametrize("name", OPERATORS)
def test_the_call_that_is_changed_is_right(name: str) -> None:
    getattr(chunkattn, name)(**arguments_of(name))


@pytest.mark.parametrize(("name", "argument"), PLACES)
@pytest.mark.parametrize("wrong", [object(), [torch.zeros(1)], b"x"], ids=["object", "list", "bytes"])
def test_a_stranger_is_named_in_one_sentence(name: str, argument: str, wrong: object) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(chunkattn, name)(**{**arguments_of(name), argument: wrong})
    assert str(caught.value).startswith(f"{argument}: expected ")
    assert "\n" not in str(caught.value)
