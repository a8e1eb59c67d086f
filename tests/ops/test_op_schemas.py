"""Schemas, fakes and dispatch of every op, as torch itself checks them (d29)."""

from __future__ import annotations

import pytest
import torch
from op_samples import samples

import chunkattn

SAMPLES = {name: (op, arguments) for name, op, arguments in samples()}
OPS = {"attention", "append_kv", "merge_states", "plan", "copy_pages", "gather_pages", "scatter_pages"}

# What each op writes; everything else is read.
MUTATED = {
    "attention": {"out", "lse", "workspace"},
    "append_kv": {"k_cache", "v_cache", "k_scale", "v_scale", "q"},
    "merge_states": {"out", "lse"},
    "plan": {"words"},
    "copy_pages": {"cache"},
    "gather_pages": {"out"},
    "scatter_pages": {"cache"},
}


def schema(name):
    return getattr(torch.ops.chunkattn, name).default._schema


@pytest.mark.parametrize("name", sorted(OPS))
def test_schema_declares_exactly_what_is_written(name):
    written = {a.name for a in schema(name).arguments if a.alias_info is not None and a.alias_info.is_write}
    assert written == MUTATED[name]
    assert not schema(name).returns  # no op returns one of its inputs


def test_every_op_is_listed():
    registered = {
        s.name.removeprefix("chunkattn::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("chunkattn::")
    }
    assert registered == OPS
    assert {name.split()[0] for name in SAMPLES} | {"plan"} == OPS


# torch's schema check compares tensors with allclose, which float8 lacks.
WITHOUT_ALLCLOSE = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name):
    op, arguments = SAMPLES[name]
    options = {"test_utils": WITHOUT_ALLCLOSE} if "fp8" in name else {}
    torch.library.opcheck(op, arguments, **options)


def test_opcheck_of_plan(backend):
    cu, lens = torch.tensor([0, 3, 3, 4]).int(), torch.tensor([40, 5, 17]).int()
    plan = chunkattn.plan(
        cu, lens, num_q_heads=4, num_kv_heads=2, head_dim=64, page_size=16, dtype=torch.float32, backend=backend
    )
    words = torch.zeros_like(plan.words)
    facts = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "head_dim_v": 64, "page_size": 16}
    options = {"dtype": torch.float32, "causal": True, "window_left": -1, "window_right": -1, "invariant": False}
    values = {**facts, **options, "num_splits": 0, "layout": "NHD", "backend": backend}
    tail = [values[argument.name] for argument in schema("plan").arguments[3:]]
    torch.library.opcheck(torch.ops.chunkattn.plan.default, (cu, lens, words, *tail))


def test_public_functions_return_what_they_promise(backend):
    from chunkattn.testing import AttentionCase, build

    inputs = build(AttentionCase("returns", (3, 1), (40, 17)))
    out = chunkattn.attention(*inputs.batch(), backend=backend)
    assert isinstance(out, torch.Tensor)
    both = chunkattn.attention(*inputs.batch(), return_lse=True, backend=backend)
    assert torch.equal(both[0], out)
    assert both[1].dtype == torch.float32
    # lse is written when given, returned only when asked for.
    lse = torch.full_like(both[1], float("nan"))
    alone = chunkattn.attention(*inputs.batch(), lse=lse, backend=backend)
    assert torch.equal(alone, out)
    assert torch.equal(lse, both[1])
