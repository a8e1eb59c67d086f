"""Lanes and warps that do not come together: collectives, barriers, deadlock."""

from __future__ import annotations

import pytest

from . import native, snippet
from .launch import Options

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))

SHARED = ".shared .align 16 .b8 tile[16]; .shared .align 8 .b8 full[8];"


def kinds_of(body: str, threads: int = 32) -> tuple[set[str], str]:
    _, result = snippet.run(body, threads=threads, module=SHARED)
    return result.kinds, "\n".join(map(str, result.all_findings))


def test_aligned_instruction_in_divergent_code() -> None:
    kinds, _ = kinds_of("setp.lt.u32 %p1, %lane, 16; @%p1 bra L; bar.sync 0; L:")
    assert kinds == {"convergence"}


def test_shuffle_from_an_absent_lane() -> None:
    kinds, _ = kinds_of("setp.lt.u32 %p1, %lane, 16; @!%p1 bra L; shfl.sync.bfly.b32 %r1, %thread, 16, 31, 0xffff; L:")
    assert kinds == {"convergence"}


def test_deadlock_names_positions() -> None:
    kinds, report = kinds_of(
        "mov.u32 %r2, full; mbarrier.init.shared.b64 [%r2], 2; mbarrier.arrive.shared.b64 %rd1, [%r2];"
        "L: mbarrier.try_wait.shared.b64 %p2, [%r2], %rd1; @!%p2 bra L;",
        threads=1,
    )
    assert "deadlock" in kinds
    assert "warp 0 spins" in report
    assert "1 of 2 arrivals" in report


def test_lanes_on_their_way_to_a_barrier_are_waited_for() -> None:
    """A compiler may put what thread 0 does behind the barrier in the text; hardware reconverges there."""
    body = """
      mov.u32 %r1, tile; mov.u32 %r3, 7; setp.eq.u32 %p1, %thread, 0; @%p1 bra THEN;
      JOIN: bar.sync 0; ld.shared.u32 %r2, [%r1]; st.global.u32 [%my_out], %r2; bra DONE;
      THEN: st.shared.u32 [%r1], %r3; bra JOIN;
      DONE:"""
    for seed in range(4):
        out, result = snippet.run(body, threads=64, module=SHARED, options=Options.for_seed(seed))
        result.require_clean()
        assert (out == 7).all()
