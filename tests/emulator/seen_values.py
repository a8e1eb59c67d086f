"""Infinities in V at keys that every row of a request sees."""

from __future__ import annotations

import math

import torch

from chunkattn.testing import AttentionCase, assert_state_close, build, laws

SEEN = AttentionCase("seen", (70, 3), (270, 33), num_q_heads=4, num_kv_heads=2, head_dim=64)


def check_seen(case: AttentionCase, attend: laws.AttendInto) -> None:
    """They stay infinities, also where weights are multiplied in two parts."""
    inputs = build(case)
    for position, value in ((0, math.inf), (7, -math.inf)):
        page = int(inputs.block_table[0, position // case.page_size])
        inputs.v_cache[page, position % case.page_size, :, position] = value
    expected = inputs.expected()
    assert torch.isinf(expected[0][:70]).sum() == 70 * 4 * 2
    assert_state_close(attend(inputs), expected, context=f"{case}: ")
