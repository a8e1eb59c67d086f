"""merge_states by Triton: the operator's own tests, and its traffic."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from ops.test_merge_states import (  # noqa: F401
    test_d16_an_infinite_lse_is_kept,
    test_d16_numbers,
    test_d17_any_order_and_layout,
    test_d17_writing_over_an_input,
    test_d23_outputs_with_their_own_strides,
    test_neutral_states_change_nothing,
    test_no_tokens,
    test_random_states_against_the_oracle,
    test_the_budget_of_a_merge_is_that_of_its_dtype,
)

from .triton_backend import backend  # noqa: F401
