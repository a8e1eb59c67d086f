"""What one access can do wrong: bounds, alignment, permission, data that nobody wrote."""

from __future__ import annotations

import pytest
import torch

from . import native, snippet
from .launch import Buffer, PtxModule

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))

SHARED = ".shared .align 1024 .b8 tile[4096];"


def kinds_of(body: str, **arguments) -> tuple[set[str], str]:
    _, result = snippet.run(body, module=SHARED, **arguments)
    return result.kinds, "\n".join(map(str, result.all_findings))


def test_bounds_name_the_buffer_and_the_distance() -> None:
    kinds, report = kinds_of("ld.global.u32 %r1, [%in+1000];")
    assert kinds == {"bounds"}
    assert "872 bytes past the end of 'in'" in report
    kinds, report = kinds_of("st.global.u32 [%out+-4], %r1;", out=torch.zeros(32, dtype=torch.int32))
    assert "bounds" in kinds
    kinds, report = kinds_of("mov.u32 %r1, tile; ld.shared.u32 %r2, [%r1+8192];")
    assert kinds == {"bounds"}
    assert "past the end of shared memory" in report


def test_the_one_lane_of_a_run_that_is_out_of_bounds_is_named() -> None:
    """Lanes that lie one behind another are checked together."""
    _, result = snippet.run("st.global.u32 [%my_out], %thread;", out=torch.zeros(31, dtype=torch.int32))
    (finding,) = result.all_findings
    assert finding.kind == "bounds"
    assert "write of 4 bytes" in finding.message
    assert "0 bytes past the end of 'out'" in finding.message


def test_alignment() -> None:
    kinds, _ = kinds_of("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+4];")
    assert kinds == {"alignment"}
    kinds, _ = kinds_of("mov.u32 %r1, tile; st.shared.v2.u32 [%r1+4], {%thread, %thread};")
    assert kinds == {"alignment"}


def test_read_only() -> None:
    kinds, report = kinds_of("st.global.u32 [%my_in], %thread;")
    assert kinds == {"read-only"}
    assert "'in'" in report


UNDEFINED_SINKS = {
    "stored value": "mov.u32 %r1, tile; ld.shared.u32 %r2, [%r1]; add.u32 %r2, %r2, 1; st.global.u32 [%my_out], %r2;",
    "address": "mov.u32 %r1, tile; ld.shared.u32 %r2, [%r1]; and.b32 %r2, %r2, 0; cvt.u64.u32 %rd1, %r2;"
    "add.s64 %rd1, %rd1, %in; ld.global.u32 %r3, [%rd1];",
    "branch": "mov.u32 %r1, tile; ld.shared.u32 %r2, [%r1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra L; L:",
    "register": "st.global.u32 [%my_out], %r50;",
    "matrix": "mov.u32 %r1, tile; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1]; st.global.u32 [%my_out], %r2;",
    "upper half": "mov.u16 %h1, 5; mov.b32 %r1, {%h1, %h30}; st.global.u32 [%my_out], %r1;",
    "byte of the upper half": "mov.u16 %h1, 5; mov.b32 %r1, {%h1, %h30}; prmt.b32 %r2, %r1, 0, 0x4442U;"
    "st.global.u32 [%my_out], %r2;",
    "byte of a byte pair": "mov.u32 %r1, 5; prmt.b32 %r2, %r1, %r50, 0x3340U; prmt.b32 %r3, %r1, %r2, 0x5400U;"
    "st.global.u32 [%my_out], %r3;",
    "byte of the lower half": "mov.u16 %h1, 5; mov.b32 %r1, {%h30, %h1}; prmt.b32 %r2, 0, %r1, 0x5000U;"
    "st.global.u32 [%my_out], %r2;",
}


@pytest.mark.parametrize("body", UNDEFINED_SINKS.values(), ids=UNDEFINED_SINKS.keys())
def test_undefined_data_is_reported_at_its_sink(body: str) -> None:
    kinds, _ = kinds_of(body)
    assert kinds == {"undefined"}


def test_undefined_data_that_is_masked_is_fine() -> None:
    """A select, a predicate, an overwrite and a permutation that leaves it out each stop undefined data."""
    kinds, report = kinds_of("""
      mov.u32 %r1, tile; ld.shared.u32 %r2, [%r1];
      setp.gt.u32 %p1, %thread, 100;
      selp.b32 %r3, %r2, 7, %p1;
      st.global.u32 [%my_out], %r3;
      setp.eq.and.u32 %p2, %r2, 0, %p1;
      @%p2 st.global.u32 [%my_out], %r2;
      mov.u32 %r2, 3;
      st.global.u32 [%my_out], %r2;
      mov.u16 %h1, 5;
      mov.b32 %r4, {%h1, %h30};
      prmt.b32 %r5, %r4, 0, 0x9180U;
      prmt.b32 %r6, 0, %r4, 0x0504U;
      add.u32 %r5, %r5, %r6;
      st.global.u32 [%my_out], %r5;
      prmt.b32 %r7, %r2, %r50, 0x3340U;
      prmt.b32 %r8, %r2, %r7, 0x5410U;
      prmt.b32 %r9, %r8, %r2, 0x5210U;
      st.global.u32 [%my_out], %r9;
    """)
    assert not kinds, report


def test_undefined_global_memory() -> None:
    data, out = torch.zeros(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    module = PtxModule(snippet.kernel_text("ld.global.u32 %r1, [%my_in]; st.global.u32 [%my_out], %r1;"))
    buffers = [Buffer.of(data, "workspace", defined=False), Buffer.of(out, "out")]
    result = module.launch("snippet", 1, 32, [data, out], buffers)
    assert result.kinds == {"undefined"}


@pytest.mark.parametrize("stride", [1, 4])
def test_the_one_lane_of_a_run_that_reads_undefined_data_is_named(stride: int) -> None:
    """All lanes but lane 9 write their word, then all read theirs; neighbours are lanes `stride` apart."""
    body = f"""
      and.b32 %r1, %lane, {stride - 1}; mul.lo.u32 %r1, %r1, {32 // stride}; div.u32 %r2, %lane, {stride};
      add.u32 %r1, %r1, %r2; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %in, %rd1;
      setp.ne.u32 %p1, %lane, 9; @%p1 st.global.u32 [%rd1], %thread;
      ld.global.u32 %r3, [%rd1]; st.global.u32 [%my_out], %r3;
    """
    data, out = torch.zeros(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    buffers = [Buffer.of(data, "workspace", defined=False), Buffer.of(out, "out")]
    result = PtxModule(snippet.kernel_text(body)).launch("snippet", 1, 32, [data, out], buffers)
    (finding,) = result.all_findings
    assert finding.kind == "undefined"
    assert "lane 9" in finding.message
    assert out.tolist() == [lane if lane != 9 else 0 for lane in range(32)]
