"""Attention of the Triton backend with other settings than the default: plan and kernel agree, answers are right."""

from __future__ import annotations

import pytest
import torch

import chunkattn
from chunkattn import AttentionSpec
from chunkattn.testing import AttentionCase, assert_state_close, build

from . import native, triton_driver

if native.unavailable_reason() is not None:
    pytest.skip(str(native.unavailable_reason()), allow_module_level=True)
if not triton_driver.available():
    pytest.skip("triton is not installed", allow_module_level=True)

from chunkattn.backends.triton import settings

CASE = AttentionCase("mixed", (33, 1, 5), (50, 600, 40), num_q_heads=6, num_kv_heads=2, head_dim=32)
SPEC = AttentionSpec("cpu", torch.bfloat16, torch.bfloat16, 6, 2, 32, 32, 16)


@pytest.mark.emulated(arch=80)
@pytest.mark.parametrize("number", [5, 20])
def test_other_tiles_answer_right(number: int) -> None:
    space = list(settings.settings_space(SPEC))
    inputs = build(CASE)
    for values in (space[number % len(space)], {**space[0], "items_per_worker": 16, "split_cost": 32}):
        with settings.with_settings(values):
            facts = {"num_q_heads": 6, "num_kv_heads": 2, "head_dim": 32, "page_size": 16, "dtype": torch.bfloat16}
            plan = chunkattn.plan(inputs.cu_seqlens_q, inputs.seq_lens, **facts, backend="triton")  # type: ignore[arg-type]
            for options in ({}, {"plan": plan}):
                out, lse = inputs.empty_state()
                given = {**inputs.options(), **options, "out": out, "lse": lse, "backend": "triton"}
                chunkattn.attention(*inputs.batch(), **given)
                assert_state_close((out, lse), inputs.expected())
