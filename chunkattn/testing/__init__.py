"""Oracles, comparisons, inputs and laws to test the operators and what is built on them. Needs only torch.

An engine's author tests an integration like this::

    from chunkattn.testing import BATCHES, AttentionCase, assert_state_close, build, laws

    q_lens, kv_lens = BATCHES["mixed_with_empty"]
    case = AttentionCase("mine", q_lens, kv_lens, num_q_heads=8, num_kv_heads=2, head_dim=128, window=(31, -1))
    inputs = build(case)                      # scattered pages, dead memory full of NaN
    out, lse = my_attention(inputs)
    assert_state_close((out, lse), inputs.expected())
    laws.check_dead_memory(my_attention, case)
"""

from __future__ import annotations

from chunkattn.testing import laws
from chunkattn.testing.append_oracle import Appended, append_kv_oracle, rotate
from chunkattn.testing.builder import Contents, build, random_contents
from chunkattn.testing.case import BATCHES, AttentionCase
from chunkattn.testing.compare import (
    assert_bitwise_equal,
    assert_lse_close,
    assert_rows_close,
    assert_same_non_finite,
    assert_state_close,
    row_budget,
    row_errors,
)
from chunkattn.testing.inputs import AttentionInputs
from chunkattn.testing.oracle import attention_oracle, merge_states_oracle, visible_positions
from chunkattn.testing.probes import lanes_expected, lanes_probe, needle_expected, needle_probe, uniform_probe
from chunkattn.testing.quantization import dynamic_scale, largest_value, quantize
from chunkattn.testing.work import flops, kv_bytes, visible_keys, visible_pairs

__all__ = [
    "BATCHES",
    "Appended",
    "AttentionCase",
    "AttentionInputs",
    "Contents",
    "append_kv_oracle",
    "assert_bitwise_equal",
    "assert_lse_close",
    "assert_rows_close",
    "assert_same_non_finite",
    "assert_state_close",
    "attention_oracle",
    "build",
    "dynamic_scale",
    "flops",
    "kv_bytes",
    "lanes_expected",
    "lanes_probe",
    "largest_value",
    "laws",
    "merge_states_oracle",
    "needle_expected",
    "needle_probe",
    "quantize",
    "random_contents",
    "rotate",
    "row_budget",
    "row_errors",
    "uniform_probe",
    "visible_keys",
    "visible_pairs",
    "visible_positions",
]
