"""append_kv by Triton: the operator's own tests, and its traffic."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from ops.test_append_kv import (  # noqa: F401
    test_d14_rows_that_are_not_aligned_to_vector_width,
    test_d24_positions_of_skipped_tokens_are_not_looked_at,
    test_d24_slot_mapping_decides_and_minus_one_skips,
    test_d24_tokens_cross_page_borders_in_table_order,
    test_d30_out_of_range_values_are_clamped_and_nan_is_kept,
    test_dynamic_scales_use_the_whole_range,
    test_earlier_pages_of_a_sliding_window_may_be_gone,
    test_every_bfloat16_is_rounded_like_the_reference,
    test_explicit_rotary_positions,
    test_nothing_to_append,
    test_quantised_bytes_equal_clamp_and_round_to_even,
    test_rotated_keys_are_quantised_after_the_rotation,
    test_rotation_numbers,
    test_rotation_of_keys_and_queries,
    test_rows_land_in_their_slots_and_nowhere_else,
)

from .triton_backend import backend  # noqa: F401
