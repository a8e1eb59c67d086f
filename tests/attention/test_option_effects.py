"""Turning any option on changes the output or raises: none is accepted and ignored, on any path."""

from __future__ import annotations

import pytest
import torch

from chunkattn.errors import UnsupportedError
from chunkattn.testing import AttentionCase, assert_state_close, build

# Each as a change of a case; on top of every base below.
OPTIONS = {
    "not causal": {"causal": False},
    "left window": {"window": (6, -1)},
    "right window": {"window": (-1, 0), "causal": False},
    "softcap": {"softcap": 2.0},
    "other scale": {"softmax_scale": 0.5},
    "alibi": {"alibi": "head"},
    "alibi per request": {"alibi": "request"},
    "sinks": {"sinks": True},
    "tree": {"tree": True},
}
BASES = {
    "chunks": AttentionCase("chunks", (37, 20), (60, 44), dtype=torch.float32),
    "speculative": AttentionCase("speculative", (4, 3), (60, 500)),
    "decodes": AttentionCase("decodes", (1, 1), (60, 500), num_q_heads=8),
    "splits": AttentionCase("splits", (1, 5), (1500, 900), num_splits=4),
    "invariant": AttentionCase("invariant", (9, 1), (60, 700), invariant=True),
    "fp8": AttentionCase("fp8", (9, 1), (60, 400), kv_dtype=torch.float8_e4m3fn, scale_mode="head"),
    "int8": AttentionCase("int8", (9, 1), (60, 400), kv_dtype=torch.int8, scale_mode="token_head"),
    "hnd": AttentionCase("hnd", (9, 1), (60, 400), layout="hnd", dtype=torch.float16),
}
WITHOUT_EFFECT_ON_ONE_TOKEN = {"not causal", "right window", "tree"}


def changed_rows(state, base) -> torch.Tensor:
    return (state[0] != base[0]).flatten(1).any(1) | (state[1] != base[1]).any(1)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("base", BASES)
def test_every_option_changes_the_output(base, option, attend):
    case = BASES[base]
    plain = build(case)
    if option == "right window":
        plain = build(case.but(causal=False))
    with_option = build(case.but(**OPTIONS[option]))
    assert torch.equal(plain.q, with_option.q)
    before = attend(plain)
    try:
        after = attend(with_option)
    except UnsupportedError:
        return
    expected = with_option.expected()
    assert_state_close(after, expected, context=f"{option}: ")
    # A lone last token has nothing after it, and so on: the oracle says which rows the option concerns.
    concerned = (expected[1] - plain.expected()[1]).abs().amax(1) > 1e-3
    assert concerned.any() == (option not in WITHOUT_EFFECT_ON_ONE_TOKEN or max(case.q_lens) > 1)
    assert changed_rows(after, before)[concerned].all()


@pytest.mark.parametrize("base", ["fp8", "int8"])
@pytest.mark.parametrize("scale", ["k_scale", "v_scale"])
def test_every_scale_changes_the_output(base, scale, attend_with):
    inputs = build(BASES[base])
    before = attend_with(inputs)
    doubled = attend_with(inputs, **{scale: 2.0 * getattr(inputs, scale)})
    dropped = attend_with(inputs, **{scale: None})
    for other in (doubled, dropped):
        assert changed_rows(other, before).all()
    if scale == "v_scale":
        assert torch.equal(doubled[1], before[1])


@pytest.mark.parametrize("first", OPTIONS)
def test_pairs_of_options(first, attend):
    """Every two options together, against the oracle, on a mixed batch."""
    base = AttentionCase("pair", (17, 1, 4), (40, 90, 300), num_q_heads=6, num_kv_heads=2, page_size=24)
    for second in OPTIONS:
        if second <= first:
            continue
        for storage in ({}, {"kv_dtype": torch.int8, "scale_mode": "token_head"}):
            inputs = build(base.but(**{**OPTIONS[first], **OPTIONS[second], **storage}))
            assert_state_close(attend(inputs), inputs.expected(), context=f"{first} and {second}: ")
