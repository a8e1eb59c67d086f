"""Control flow, calls, collectives, barriers and atomics: what each does, on small kernels."""

from __future__ import annotations

import pytest
import torch

from . import native, snippet
from .launch import Options, PtxModule

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))

MODULE = """
.shared .align 1024 .b8 tile[4096]; .shared .align 8 .b8 full[8]; .shared .align 8 .b8 empty[8];
.global .align 4 .u32 table[4] = {10, 20, 30, 40};
.const .align 4 .f32 half = 0f3F000000;
.func (.param .b32 result) twice_plus(.param .b32 x, .param .b32 y) {
  .reg .b32 %a<4>; .reg .pred %q;
  ld.param.b32 %a1, [x]; ld.param.b32 %a2, [y];
  setp.gt.u32 %q, %a1, 40;
  @%q bra SMALL;
  mad.lo.u32 %a3, %a1, 2, %a2;
  st.param.b32 [result], %a3;
  ret;
SMALL:
  st.param.b32 [result], %a2;
  ret;
}
"""


def run(body: str, threads: int = 32, seeds: int = 3, **arguments) -> list[int]:
    """out of a clean run, the same for all seeds."""
    results = []
    for seed in range(seeds):
        count = threads * arguments.get("grid", 1)
        options = Options.for_seed(seed)
        out = torch.zeros(count, dtype=torch.int32)
        _, result = snippet.run(body, out=out, threads=threads, module=MODULE, options=options, **arguments)
        result.require_clean()
        results.append(out.tolist())
    assert all(other == results[0] for other in results)
    return results[0]


STORE = "st.global.u32 [%my_out], %r1;"


def test_call_with_param_variables() -> None:
    body = """
      { .param .b32 p0; .param .b32 p1; .param .b32 r0; .reg .b32 %a1;
        add.u32 %a1, %thread, 30;
        st.param.b32 [p0], %a1; st.param.b32 [p1], 7;
        call.uni (r0), twice_plus, (p0, p1);
        ld.param.b32 %r1, [r0]; }
    """
    assert run(body + STORE) == [2 * (t + 30) + 7 if t + 30 <= 40 else 7 for t in range(32)]


def test_module_variables() -> None:
    body = """
      mov.u64 %rd1, table; and.b32 %r2, %thread, 3; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd1, %rd1, %rd2;
      ld.global.u32 %r1, [%rd1]; ld.const.f32 %f1, [half]; mul.f32 %f1, %f1, 0f40800000; cvt.rzi.u32.f32 %r3, %f1;
      add.u32 %r1, %r1, %r3;
    """
    assert run(body + STORE) == [10 * (t % 4 + 1) + 2 for t in range(32)]


def test_divergent_loop_reconverges() -> None:
    body = """
      mov.u32 %r1, 0; mov.u32 %r2, %thread;
      L: setp.eq.u32 %p1, %r2, 0; @%p1 bra DONE; add.u32 %r1, %r1, %r2; sub.u32 %r2, %r2, 1; bra L;
      DONE: bar.sync 0;
    """
    assert run(body + STORE, threads=64) == [t * (t + 1) // 2 for t in range(64)]


def test_lane_that_waits_for_its_neighbour_in_the_warp() -> None:
    """Lane 0 spins on an mbarrier that lane 1 of the same warp completes."""
    body = """
      mov.u32 %r2, full; setp.eq.u32 %p1, %lane, 0; setp.eq.u32 %p3, %lane, 1; mov.u32 %r1, 5;
      @%p1 mbarrier.init.shared.b64 [%r2], 1;
      bar.warp.sync -1;
      @!%p1 bra OTHER;
      L: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra L;
      mov.u32 %r1, 6;
      bra END;
      OTHER: @%p3 mbarrier.arrive.shared.b64 _, [%r2];
      END:
    """
    assert run(body + STORE) == [6] + [5] * 31


COLLECTIVES = {
    "shfl up": ("shfl.sync.up.b32 %r1|%p1, %thread, 3, 0, -1;", lambda t: t - 3 if t >= 3 else t),
    "shfl down in segments of 8": ("shfl.sync.down.b32 %r1, %thread, 2, 0x1807, -1;",
                                   lambda t: t + 2 if t % 8 < 6 else t),
    "ballot": ("setp.gt.u32 %p1, %thread, 29; vote.sync.ballot.b32 %r1, %p1, -1;", lambda t: -(1 << 30)),
    "vote all": ("setp.gt.u32 %p1, %thread, 0; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r1, 1, 2, %p2;", lambda t: 2),
    "vote uni": ("setp.gt.u32 %p1, %thread, 99; vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r1, 1, 2, %p2;",
                 lambda t: 1),
    "match any": ("and.b32 %r2, %thread, 1; match.any.sync.b32 %r1, %r2, -1;",
                  lambda t: 0x55555555 if t % 2 == 0 else 0xAAAAAAAA - (1 << 32)),
    "match all": ("mov.u32 %r2, 9; match.all.sync.b32 %r1|%p1, %r2, -1;", lambda t: -1),
    "redux add": ("redux.sync.add.u32 %r1, %thread, -1;", lambda t: 496),
    "redux max": ("sub.s32 %r2, 5, %thread; redux.sync.max.s32 %r1, %r2, -1;", lambda t: 5),
    "elect": ("elect.sync %r2|%p1, -1; selp.u32 %r1, 1, 0, %p1;", lambda t: int(t == 0)),
    "activemask": ("activemask.b32 %r1;", lambda t: -1),
    "movmatrix": ("mul.lo.u32 %r2, %thread, 2; add.u32 %r3, %r2, 1; shl.b32 %r3, %r3, 16; or.b32 %r2, %r2, %r3;"
                  "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;",
                  lambda t: (t % 4 * 2 * 8 + t // 4) | (t % 4 * 2 * 8 + 8 + t // 4) << 16),
    "bar.red": ("setp.gt.u32 %p1, %thread, 20; bar.red.popc.u32 %r1, 0, %p1;", lambda t: 11),
    "setmaxnreg": ("setmaxnreg.inc.sync.aligned.u32 40; mov.u32 %r1, 1;", lambda t: 1),
    "grid dependency": ("griddepcontrol.wait; griddepcontrol.launch_dependents; mov.u32 %r1, 1;", lambda t: 1),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), COLLECTIVES.values(), ids=COLLECTIVES.keys())
def test_collective(body: str, expected) -> None:
    assert run(body + STORE) == [expected(t) for t in range(32)]


def test_named_barriers_hand_over_between_warps() -> None:
    """Warp 0 produces, warp 1 consumes, through bar.arrive and bar.sync on two named barriers."""
    body = """
      mov.u32 %r2, tile; shl.b32 %r3, %lane, 2; add.u32 %r3, %r2, %r3; setp.eq.u32 %p1, %warp, 0; mov.u32 %r4, 0;
      mov.u32 %r1, 0;
      @!%p1 bra CONSUMER;
      PRODUCER: bar.sync 1, 64; add.u32 %r5, %lane, %r4; st.shared.u32 [%r3], %r5; bar.arrive 2, 64;
      add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 5; @%p2 bra PRODUCER; bra END;
      CONSUMER: bar.arrive 1, 64; bar.sync 2, 64; ld.shared.u32 %r6, [%r3]; add.u32 %r1, %r1, %r6;
      add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 5; @%p2 bra CONSUMER;
      END:
    """
    assert run(body + STORE, threads=64)[32:] == [5 * lane + 10 for lane in range(32)]


ATOMICS = {
    "add": ("atom.global.add.u32 %r1, [%out], 1;", 32),
    "max": ("atom.global.max.s32 %r1, [%out], %thread;", 31),
    "or": ("shl.b32 %r2, 1, %thread; red.global.or.b32 [%out], %r2;", -1),
    "cas": ("atom.global.cas.b32 %r1, [%out], 0, 77;", 77),
    "inc": ("atom.global.inc.u32 %r1, [%out], 9;", 2),
    "f32": ("red.global.add.f32 [%out], 0f3F800000;", 0x42000000),
    "f16x2": ("mov.b32 %r2, 0x3C003C00; red.global.add.noftz.f16x2 [%out], %r2;", 0x50005000),
}


@pytest.mark.parametrize(("body", "expected"), ATOMICS.values(), ids=ATOMICS.keys())
def test_atomic(body: str, expected: int) -> None:
    assert run(body)[0] == expected


def test_vector_reduction() -> None:
    out = torch.zeros(4)
    body = "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; red.global.add.v4.f32 [%out], {%f1, %f2, %f1, %f2};"
    _, result = snippet.run(body, out=out)
    result.require_clean()
    assert out.tolist() == [32, 64, 32, 64]


def test_mbarrier_states_and_drop() -> None:
    """Waiting by the state that an arrival returned, and a thread that leaves the barrier for good."""
    body = """
      mov.u32 %r2, full; setp.eq.u32 %p1, %thread, 0;
      @%p1 mbarrier.init.shared.b64 [%r2], 64;
      bar.sync 0;
      mov.u32 %r1, 1;
      setp.lt.u32 %p3, %thread, 32; @!%p3 bra STAY;
      mbarrier.arrive_drop.shared.b64 %rd1, [%r2];
      bra END;
      STAY: mbarrier.arrive.shared.b64 %rd1, [%r2];
      L: mbarrier.try_wait.shared.b64 %p2, [%r2], %rd1; @!%p2 bra L;
      mbarrier.arrive.shared.b64 %rd1, [%r2];
      M: mbarrier.test_wait.shared.b64 %p2, [%r2], %rd1; @!%p2 bra M;
      mov.u32 %r1, 2;
      END:
    """
    assert run(body + STORE, threads=64) == [1] * 32 + [2] * 32


def test_bulk_copy_between_ctas_of_a_cluster() -> None:
    body = """
      mov.u32 %r2, full; mov.u32 %r3, tile; setp.eq.u32 %p1, %thread, 0; mov.u32 %r9, %cluster_ctarank;
      @%p1 mbarrier.init.shared.b64 [%r2], 1;
      shl.b32 %r4, %thread, 2; add.u32 %r5, %r3, %r4; mad.lo.u32 %r6, %r9, 100, %thread; st.shared.u32 [%r5], %r6;
      fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      xor.b32 %r10, %r9, 1; add.u32 %r11, %r3, 1024;
      mapa.shared::cluster.u32 %r12, %r11, %r10; mapa.shared::cluster.u32 %r13, %r2, %r10; mov.u32 %r14, 128;
      @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
      @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r12], [%r3], %r14, [%r13];
      L: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra L;
      ld.shared.u32 %r1, [%r5+1024];
      mul.wide.u32 %rd1, %r9, 128; add.s64 %my_out, %my_out, %rd1;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    assert run(body + STORE, grid=2, cluster=2) == [100 + t for t in range(32)] + list(range(32))


def test_st_async_to_the_other_cta() -> None:
    body = """
      mov.u32 %r2, full; mov.u32 %r3, tile; setp.eq.u32 %p1, %thread, 0; mov.u32 %r9, %cluster_ctarank;
      @%p1 mbarrier.init.shared.b64 [%r2], 1;
      fence.mbarrier_init.release.cluster;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
      xor.b32 %r10, %r9, 1; shl.b32 %r4, %thread, 2; add.u32 %r5, %r3, %r4; mad.lo.u32 %r6, %r9, 100, %thread;
      mapa.shared::cluster.u32 %r12, %r5, %r10; mapa.shared::cluster.u32 %r13, %r2, %r10;
      st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r12], %r6, [%r13];
      L: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra L;
      ld.shared.u32 %r1, [%r5];
      mul.wide.u32 %rd1, %r9, 128; add.s64 %my_out, %my_out, %rd1;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    assert run(body + STORE, grid=2, cluster=2) == [100 + t for t in range(32)] + list(range(32))


def test_a_cta_may_wait_for_a_later_one() -> None:
    """CTA 0 spins on a flag that the last CTA sets: they must run side by side."""
    body = """
      setp.ne.u32 %p1, %thread, 0; @%p1 bra END;
      setp.eq.u32 %p2, %cta, 0; @%p2 bra WAIT;
      setp.ne.u32 %p3, %cta, 5; @%p3 bra END;
      mov.u32 %r2, 1; st.release.gpu.global.u32 [%out+64], %r2; bra END;
      WAIT: ld.acquire.gpu.global.u32 %r2, [%out+64]; setp.eq.u32 %p3, %r2, 0; @%p3 bra WAIT;
      mov.u32 %r3, 3; st.global.u32 [%out], %r3;
      END:
    """
    assert run(body, grid=6)[0] == 3


def test_line_information_reaches_the_report() -> None:
    text = snippet.kernel_text(".loc 1 42 3\n st.global.u32 [%in], %thread;").replace(
        ".address_size 64", '.address_size 64\n.file 1 "attention.cu"'
    )
    data = torch.zeros(32, dtype=torch.int32)
    module = PtxModule(text)
    from .launch import Buffer

    result = module.launch("snippet", 1, 32, [data, data], [Buffer.of(data, "in", writable=False)])
    assert result.kinds == {"read-only"}
    assert "attention.cu:42" in str(result.stopped)


def test_bodies_are_accepted_by_ptxas() -> None:
    if snippet.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    statements = [body for body, _ in COLLECTIVES.values()] + [body for body, _ in ATOMICS.values()]
    text = snippet.kernel_text("\n".join(f"{{ {body} }}" for body in statements), MODULE)
    assert snippet.ptxas_error(text) is None
