"""The demo's figures from known times."""

from __future__ import annotations

import pytest

from chunkattn.cli.results import RunResult, as_json, result_of
from chunkattn.serving import RequestTimes


class KnownRun:
    """A finished run whose times are given."""

    steps = (None,) * 7

    def times(self) -> dict[str, RequestTimes]:
        return {
            "ada": RequestTimes("ada", 0.0, (1.0, 2.0, 5.0)),  # 2 s a token, longest wait 3 s
            "ben": RequestTimes("ben", 0.0, (1.0, 2.0)),  # 1 s a token
            "cleo": RequestTimes("cleo", 0.0, (4.0,)),  # one token: no time per token
            "document": RequestTimes("document", 2.0, (6.0, 6.5)),
        }

    def peak_activation_bytes(self) -> int:
        return 1234


def test_figures_follow_their_definitions() -> None:
    result = result_of(KnownRun())  # type: ignore[arg-type]
    assert result == RunResult(
        ttft_s=4.0, tpot_s=pytest.approx(1.5), longest_stall_s=3.0, steps=7, peak_activation_bytes=1234
    )


def test_json_holds_both_runs() -> None:
    one, two = RunResult(1.0, 2.0, 3.0, 4, 5), RunResult(6.0, 7.0, 8.0, 9, 10)
    assert as_json(one, two, True) == {
        "whole": {"ttft_s": 1.0, "tpot_s": 2.0, "longest_stall_s": 3.0, "steps": 4, "peak_activation_bytes": 5},
        "chunked": {"ttft_s": 6.0, "tpot_s": 7.0, "longest_stall_s": 8.0, "steps": 9, "peak_activation_bytes": 10},
        "tokens_equal": True,
    }
