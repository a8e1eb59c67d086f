"""Every class of fault, planted once in a small kernel, is found and named; the right kernel is clean."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from . import native, snippet
from .launch import Options

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))

SEEDS = range(20)

SHARED = ".shared .align 1024 .b8 tile[4096]; .shared .align 8 .b8 full[8]; .shared .align 8 .b8 empty[8];"

# An exchange of words between the two warps of a CTA.
EXCHANGE = """
  mov.u32 %r1, tile; shl.b32 %r2, %thread, 2; add.u32 %r3, %r1, %r2;
  st.shared.u32 [%r3], %thread;
  {barrier}
  xor.b32 %r4, %r2, 128; add.u32 %r4, %r1, %r4;
  ld.shared.u32 %r5, [%r4];
  st.global.u32 [%my_out], %r5;
"""

# cp.async of 16 bytes a thread, read back by the other warp.
CP_ASYNC = """
  mov.u32 %r1, tile; shl.b32 %r2, %thread, 4; add.u32 %r3, %r1, %r2;
  mul.wide.u32 %rd1, %thread, 16; add.s64 %rd1, %in, %rd1;
  cp.async.cg.shared.global [%r3], [%rd1], 16;
  {commit}
  {wait}
  {barrier}
  xor.b32 %r4, %r2, 512; add.u32 %r4, %r1, %r4;
  ld.shared.u32 %r5, [%r4];
  st.global.u32 [%my_out], %r5;
"""

# Thread 0 copies 256 bytes by cp.async.bulk; everybody waits and reads; then the buffer is used again.
BULK = """
  mov.u32 %r1, tile; mov.u32 %r2, full; setp.eq.u32 %p1, %thread, 0;
  @%p1 mbarrier.init.shared.b64 [%r2], 1;
  {init_fence}
  {init_barrier}
  @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {bytes};
  mov.u32 %r9, 256;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%in], %r9, [%r2];
  {wait}
  shl.b32 %r3, %thread, 2; add.u32 %r3, %r1, %r3;
  ld.shared.u32 %r5, [%r3];
  st.global.u32 [%my_out], %r5;
  {reuse_barrier}
  mov.u32 %r6, 7; xor.b32 %r3, %r3, 128;
  {reuse}
"""
WAIT = "L: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra L;"

# Each thread fills shared memory, thread 0 stores it by bulk copy, then the buffer is overwritten.
BULK_STORE = """
  mov.u32 %r1, tile; setp.eq.u32 %p1, %thread, 0; mov.u32 %r9, 256;
  shl.b32 %r3, %thread, 2; add.u32 %r3, %r1, %r3;
  st.shared.u32 [%r3], %thread;
  {fence}
  bar.sync 0;
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%out], [%r1], %r9;
  @%p1 cp.async.bulk.commit_group;
  {wait}
  bar.sync 0;
  mov.u32 %r4, 99;
  st.shared.u32 [%r3], %r4;
"""

# wgmma m64n8k16 on tiles that all threads write; the accumulator goes to global memory.
WGMMA = """
  mov.u32 %r1, tile; mul.lo.u32 %r2, %thread, 24; add.u32 %r3, %r1, %r2;
  mov.u32 %r4, 0x3C003C00;
  st.shared.u32 [%r3], %r4; st.shared.u32 [%r3+4], %r4; st.shared.u32 [%r3+8], %r4;
  st.shared.u32 [%r3+12], %r4; st.shared.u32 [%r3+16], %r4; st.shared.u32 [%r3+20], %r4;
  mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
  {proxy_fence}
  {barrier}
  {wgmma_fence}
  shr.u32 %r5, %r1, 4; and.b32 %r5, %r5, 0x3fff; cvt.u64.u32 %rd1, %r5;
  or.b64 %rd1, %rd1, 0x0000001000080000;
  add.u64 %rd2, %rd1, 128;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f1, %f2, %f3, %f4}}, %rd1, %rd2, 1, 1, 1, 0, 0;
  {commit}
  {wait}
  add.f32 %f5, %f1, %f2; mov.b32 %r6, %f5;
  st.global.u32 [%my_out], %r6;
  {end}
"""

# Two CTAs: the first one publishes a word, the second one spins for the flag and reads it.
PUBLISH = """
  setp.ne.u32 %p1, %thread, 0; @%p1 bra END;
  setp.ne.u32 %p2, %cta, 0; @%p2 bra READ;
  mov.u32 %r1, 42; mov.u32 %r2, 1;
  st.global.u32 [%out], %r1;
  {release}
  bra END;
READ:
  {acquire}
  setp.eq.u32 %p3, %r3, 0; @%p3 bra READ;
  {after}
  ld.global.u32 %r4, [%out];
  st.global.u32 [%out+8], %r4;
END:
"""

# Two CTAs of a cluster: rank 0 writes into rank 1's shared memory.
CLUSTER = """
  mov.u32 %r1, tile; mov.u32 %r9, %cluster_ctarank; setp.ne.u32 %p1, %r9, 0;
  mov.u32 %r5, 0; shl.b32 %r2, %thread, 2; add.u32 %r3, %r1, %r2;
  st.shared.u32 [%r3], %r5;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mov.u32 %r7, 1; mapa.shared::cluster.u32 %r4, %r3, %r7; add.u32 %r6, %thread, 5;
  @!%p1 st.shared::cluster.u32 [%r4], %r6;
  {barrier}
  ld.shared.u32 %r8, [%r3];
  mul.wide.u32 %rd1, %r9, 128; add.s64 %my_out, %my_out, %rd1;
  st.global.u32 [%my_out], %r8;
"""


@dataclass(frozen=True)
class Case:
    """A right kernel and what breaks when one of its parts is replaced."""

    name: str
    body: str
    parts: dict[str, str]
    faults: dict[str, tuple[dict[str, str], set[str]]]
    threads: int = 64
    grid: int = 1
    cluster: int = 1
    expected: dict[int, int] = field(default_factory=dict)  # out[index]

    def run(self, changes: dict[str, str], options: Options):
        inputs = torch.arange(1, 1025, dtype=torch.int32)
        out = torch.zeros(256, dtype=torch.int32)
        body = self.body.format(**{**self.parts, **changes})
        return snippet.run(
            body, inputs, out, self.threads, self.grid, module=SHARED, cluster=self.cluster, options=options
        )


CASES = [
    Case(
        "exchange",
        EXCHANGE,
        {"barrier": "bar.sync 0;"},
        {
            "no barrier": ({"barrier": ""}, {"shared-race"}),
            "warp barrier only": ({"barrier": "bar.warp.sync -1;"}, {"shared-race"}),
            "too few threads": ({"barrier": "bar.sync 0, 32;"}, {"shared-race"}),
            "never arrives": ({"barrier": "bar.sync 0, 96;"}, {"deadlock"}),
            "odd count": ({"barrier": "bar.sync 0, 40;"}, {"barrier"}),
        },
        expected={0: 32, 40: 8},
    ),
    Case(
        "cp.async",
        CP_ASYNC,
        {"commit": "cp.async.commit_group;", "wait": "cp.async.wait_group 0;", "barrier": "bar.sync 0;"},
        {
            "no wait": ({"wait": ""}, {"shared-race", "pending-async"}),
            "wait too weak": ({"wait": "cp.async.wait_group 1;"}, {"shared-race"}),
            "no commit": ({"commit": ""}, {"shared-race"}),
            "no barrier": ({"barrier": ""}, {"shared-race"}),
        },
        expected={0: 129},
    ),
    Case(
        "bulk load",
        BULK,
        {
            "init_fence": "fence.mbarrier_init.release.cluster;",
            "init_barrier": "bar.sync 0;",
            "bytes": "256",
            "wait": WAIT,
            "reuse_barrier": "bar.sync 0;",
            "reuse": "st.shared.u32 [%r3], %r6;",
        },
        {
            "no init fence": ({"init_fence": ""}, {"proxy"}),
            "no barrier after init": ({"init_barrier": ""}, {"barrier"}),
            "no wait": ({"wait": ""}, {"shared-race"}),
            "expects too little": ({"bytes": "128"}, {"barrier"}),
            "expects too much": ({"bytes": "512"}, {"deadlock"}),
            "no barrier before reuse": ({"reuse_barrier": ""}, {"shared-race"}),
            "plain access to the mbarrier": ({"reuse": "ld.shared.u32 %r7, [%r2];"}, {"barrier"}),
        },
        expected={5: 6},
    ),
    Case(
        "bulk store",
        BULK_STORE,
        {"fence": "fence.proxy.async.shared::cta;", "wait": "cp.async.bulk.wait_group.read 0;"},
        {
            "no fence": ({"fence": ""}, {"proxy"}),
            "no wait": ({"wait": ""}, {"shared-race", "pending-async"}),
        },
        expected={5: 5, 63: 63},
    ),
    Case(
        "wgmma",
        WGMMA,
        {
            "proxy_fence": "fence.proxy.async;",
            "barrier": "bar.sync 0;",
            "wgmma_fence": "wgmma.fence.sync.aligned;",
            "commit": "wgmma.commit_group.sync.aligned;",
            "wait": "wgmma.wait_group.sync.aligned 0;",
            "end": "",
        },
        {
            "no proxy fence": ({"proxy_fence": ""}, {"proxy"}),
            "no barrier": ({"barrier": ""}, {"shared-race"}),
            "no wgmma fence": ({"wgmma_fence": ""}, {"proxy"}),
            "no commit": ({"commit": ""}, {"wgmma-registers", "pending-async"}),
            "no wait": ({"wait": ""}, {"wgmma-registers", "pending-async"}),
            "wait too weak": ({"wait": "wgmma.wait_group.sync.aligned 1;"}, {"wgmma-registers"}),
        },
        threads=128,
        expected={0: 0x42000000},
    ),
    Case(
        "publish",
        PUBLISH,
        {
            "release": "st.release.gpu.global.u32 [%out+4], %r2;",
            "acquire": "ld.acquire.gpu.global.u32 %r3, [%out+4];",
            "after": "",
        },
        {
            "relaxed store": ({"release": "st.relaxed.gpu.global.u32 [%out+4], %r2;"}, {"global-race"}),
            "relaxed load": ({"acquire": "ld.relaxed.gpu.global.u32 %r3, [%out+4];"}, {"global-race"}),
            "plain flag": ({"release": "st.global.u32 [%out+4], %r2;"}, {"global-race"}),
            "CTA scope": ({"release": "st.release.cta.global.u32 [%out+4], %r2;"}, {"global-race"}),
        },
        grid=2,
        expected={2: 42},
    ),
    Case(
        "fences around relaxed accesses",
        PUBLISH,
        {
            "release": "membar.gl; st.volatile.global.u32 [%out+4], %r2;",
            "acquire": "ld.volatile.global.u32 %r3, [%out+4];",
            "after": "fence.acq_rel.gpu;",
        },
        {
            "no fence before": ({"release": "st.volatile.global.u32 [%out+4], %r2;"}, {"global-race"}),
            "no fence after": ({"after": ""}, {"global-race"}),
        },
        grid=2,
        expected={2: 42},
    ),
    Case(
        "cluster",
        CLUSTER,
        {"barrier": "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"},
        {
            "no barrier": ({"barrier": ""}, {"shared-race", "cluster"}),
            "CTA barrier only": ({"barrier": "bar.sync 0;"}, {"shared-race", "cluster"}),
            "relaxed arrive": (
                {"barrier": "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"},
                {"shared-race"},
            ),
        },
        threads=32,
        grid=2,
        cluster=2,
        expected={0: 0, 32: 5, 33: 6},
    ),
]  # fmt: skip

FAULTS = [pytest.param(case, fault, id=f"{case.name}: {fault}") for case in CASES for fault in case.faults]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_right_kernel_is_clean(case: Case) -> None:
    for seed in SEEDS:
        out, result = case.run({}, Options.for_seed(seed))
        result.require_clean()
        for index, value in case.expected.items():
            assert out[index] == value, f"seed {seed}, out[{index}]"


@pytest.mark.parametrize(("case", "fault"), FAULTS)
def test_fault_is_named(case: Case, fault: str) -> None:
    changes, kinds = case.faults[fault]
    found: set[str] = set()
    for seed in range(3):
        _, result = case.run(changes, Options.for_seed(seed, max_warp_instructions=200_000))
        found |= result.kinds
    assert found & kinds, f"found {found or 'nothing'}, expected one of {kinds}"


def test_every_body_is_accepted_by_ptxas() -> None:
    if snippet.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    for case in CASES:
        text = snippet.kernel_text(case.body.format(**case.parts), SHARED)
        assert snippet.ptxas_error(text) is None, case.name


@pytest.mark.parametrize("value", ["%lane", "%thread"])
@pytest.mark.parametrize("check", [True, False])
def test_unordered_writes_of_equal_bytes_may_be_allowed(check: bool, value: str) -> None:
    """Both warps write the same words: the same values, or each its own."""
    body = f"mov.u32 %r1, tile; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], {value};"
    options = Options(check_equal_writes=check)
    _, result = snippet.run(body, threads=64, module=SHARED, options=options)
    assert (result.kinds == {"shared-race"}) == (check or value == "%thread")


def test_bytes_of_one_word_are_kept_apart() -> None:
    """Warp 0 writes the even bytes, warp 1 the odd ones; then both read all of them."""
    body = """
      mov.u32 %r1, tile; shl.b32 %r2, %lane, 1; add.u32 %r3, %r1, %r2; shr.u32 %r4, %thread, 5; add.u32 %r3, %r3, %r4;
      st.shared.u8 [%r3], %thread; {barrier} add.u32 %r3, %r1, %r2; ld.shared.u16 %h1, [%r3];
      cvt.u32.u16 %r5, %h1; st.global.u32 [%my_out], %r5;
    """
    for seed in range(4):
        run = {"threads": 64, "module": SHARED, "options": Options.for_seed(seed)}
        out, result = snippet.run(body.format(barrier="bar.sync 0;"), **run)
        result.require_clean()
        assert out.tolist() == 2 * [lane | (lane + 32) << 8 for lane in range(32)]
        _, result = snippet.run(body.format(barrier=""), **run)
        assert result.kinds >= {"shared-race"}


@pytest.mark.parametrize(("second", "expected"), [("sync", set()), ("arrive", {"barrier"})])
def test_a_barrier_at_which_all_only_arrive(second: str, expected: set[str]) -> None:
    body = f"""
      setp.eq.u32 %p1, %warp, 0; @%p1 bra FIRST;
      bar.{second} 1, 64; bra END;
      FIRST: bar.arrive 1, 64;
      END: st.global.u32 [%my_out], %thread;
    """
    for seed in range(4):
        _, result = snippet.run(body, threads=64, options=Options.for_seed(seed))
        assert result.kinds == expected


@pytest.mark.parametrize("barrier", ["bar.sync 0;", ""])
@pytest.mark.parametrize("width", ["v4.u32", "u32"])
def test_a_byte_written_after_wide_reads(width: str, barrier: str) -> None:
    """Words written one by one and read by four or one by one; then one byte of them is written."""
    registers = "{%r5, %r6, %r7, %r8}" if width == "v4.u32" else "%r5"
    body = f"""
      mov.u32 %r1, tile; shl.b32 %r2, %thread, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %thread; bar.sync 0;
      shl.b32 %r2, %lane, {4 if width == "v4.u32" else 2}; and.b32 %r2, %r2, 255; add.u32 %r3, %r1, %r2;
      ld.shared.{width} {registers}, [%r3]; st.global.u32 [%my_out], %r5;
      {barrier}
      setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.u8 [%r1+7], %thread;
    """
    _, result = snippet.run(body, threads=64, module=SHARED)
    assert result.kinds == (set() if barrier else {"shared-race"})
