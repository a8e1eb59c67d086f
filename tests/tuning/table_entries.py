"""Entries of a table of measured settings."""

from __future__ import annotations

from chunkattn.planning.tuning_table import TuningEntry, TuningKey

KEY = TuningKey("cpu", "Zen 4, avx512bf16, 2 threads", "", "0.1.0", "abcd", "bfloat16", 128, 128, 4, "16", "decode")
ENTRY = TuningEntry({"block_q": 32, "split_target": 4}, 1.12, 0.02, 1000.0)


def numbered(i: int) -> TuningKey:
    return KEY._replace(mix_class=f"mix{i}")
