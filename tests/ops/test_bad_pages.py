"""Bad input of the page operators gets one clear sentence."""

from __future__ import annotations

import pytest
import torch

import chunkattn

V, T = ValueError, TypeError
PAGES: dict[str, tuple] = {
    "pool of one dim": (lambda a: {"cache": torch.zeros(8)}, V, "cache: expected"),
    "ids float": (lambda a: {"pages": torch.zeros(2)}, T, "pages: expected .*, got torch.float32"),
    "ids rank 2": (lambda a: {"pages": torch.zeros(2, 1).int()}, V, "pages: expected one dimension"),
    "id outside": (lambda a: {"pages": torch.tensor([0, 8])}, V, "pages: expected a page id from 0 to 7, got 8 at"),
    "pool without pages": (lambda a: {"cache": a["cache"][:0]}, V, "pages: expected no page id, since .*no pages, got"),
    "block of other pages": (lambda a: {"block": torch.zeros(3, 4)}, V, "(out|block): expected"),
    "block of another dtype": (lambda a: {"block": torch.zeros(2, 4).half()}, T, "(out|block): expected torch.float32"),
    "pool needs gradient": (lambda a: {"cache": a["cache"].requires_grad_()}, V, "^cache: expected .*gradient"),
    "pool sparse": (lambda a: {"cache": torch.zeros(8, 4).to_sparse()}, V, "^cache: expected a dense tensor"),
    "block a number": (lambda a: {"block": 3}, T, "(out|block): expected a tensor, got int"),
    "backend a number": (lambda a: {"backend": 3}, T, "backend: expected a name or None, got int"),
}  # fmt: skip


@pytest.mark.parametrize("op", ["gather_pages", "scatter_pages"])
@pytest.mark.parametrize("name", PAGES)
def test_page_operators_refuse(name, op, backend):
    change, error, message = PAGES[name]
    arguments = {
        "cache": torch.zeros(8, 4), "pages": torch.tensor([0, 1]), "block": torch.ones(2, 4), "backend": backend
    }  # fmt: skip
    arguments.update(change(arguments))
    block = arguments.pop("block")
    arguments["out" if op == "gather_pages" else "block"] = block
    with pytest.raises(error, match=message):
        getattr(chunkattn, op)(**arguments)
