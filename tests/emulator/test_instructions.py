"""Each instruction form against an independent reference, lane by lane."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from . import native, snippet

pytestmark = pytest.mark.skipif(native.unavailable_reason() is not None, reason=str(native.unavailable_reason()))

EDGES = [
    0,
    1,
    2,
    31,
    32,
    33,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x12345678,
    0xDEADBEEF,
    0xFFFF,
    0x8000,
]


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def to_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]


def from_float(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.float32).view(torch.int32)) & 0xFFFFFFFF


def pairs() -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(7)
    random = torch.randint(0, 1 << 32, (64, 2), generator=generator).tolist()
    return [(a, b) for a in EDGES for b in EDGES] + [(a, b) for a, b in random]


def run_pairs(statement: str, values: list[tuple[int, int]]) -> list[int]:
    """Results of `statement` on pairs of 32-bit values: it reads %r1, %r2 (or %f1, %f2) and writes %r3 (or %f3)."""
    while len(values) % 32:
        values = [*values, values[-1]]
    count = len(values)
    data = torch.tensor(
        [v - (1 << 32) if v >> 31 else v for pair in values for v in pair],
        dtype=torch.int32,
    )
    body = f"""
      mul.wide.u32 %rd1, %thread, 8;
      add.s64 %rd1, %in, %rd1;
      mov.u32 %r0, %ctaid.x;
      mov.u32 %r4, %ntid.x;
      mad.lo.u32 %r0, %r0, %r4, 0;
      mul.wide.u32 %rd2, %r0, 8;
      add.s64 %rd1, %rd1, %rd2;
      ld.global.v2.u32 {{%r1, %r2}}, [%rd1];
      mov.b32 %f1, %r1;
      mov.b32 %f2, %r2;
      {statement}
      {"mov.b32 %r3, %f3;" if "%f3" in statement else ""}
      mul.wide.u32 %rd2, %r0, 4;
      add.s64 %rd2, %my_out, %rd2;
      st.global.u32 [%rd2], %r3;
    """
    out, result = snippet.run(body, data, torch.zeros(count, dtype=torch.int32), threads=32, grid=count // 32)
    result.require_clean()
    return [value & 0xFFFFFFFF for value in out.tolist()]


def shift_right_signed(a: int, b: int) -> int:
    return signed(a) >> min(b, 31)


def funnel_left(a: int, b: int) -> int:
    return ((b << 32 | a) << 7) >> 32


def permute(a: int, b: int) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    return int.from_bytes(bytes(data[k] for k in (3, 6, 1, 4)), "little")


def bit_field(a: int, start: int, length: int) -> int:
    return (a >> start) & ((1 << length) - 1)


def lop3_majority(a: int, b: int) -> int:
    return a ^ b ^ 0x0F0F0F0F


@dataclass(frozen=True)
class IntegerCase:
    statement: str
    reference: Callable[[int, int], int]

    def __str__(self) -> str:
        return self.statement.split()[0]


def divide_toward_zero(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


INTEGER_CASES = [
    IntegerCase("add.s32 %r3, %r1, %r2;", lambda a, b: a + b),
    IntegerCase("sub.u32 %r3, %r1, %r2;", lambda a, b: a - b),
    IntegerCase("mul.lo.s32 %r3, %r1, %r2;", lambda a, b: a * b),
    IntegerCase("mul.hi.u32 %r3, %r1, %r2;", lambda a, b: a * b >> 32),
    IntegerCase("mul.hi.s32 %r3, %r1, %r2;", lambda a, b: signed(a) * signed(b) >> 32),
    IntegerCase("mad.lo.s32 %r3, %r1, %r2, 17;", lambda a, b: a * b + 17),
    IntegerCase("min.s32 %r3, %r1, %r2;", lambda a, b: min(signed(a), signed(b))),
    IntegerCase("min.relu.s32 %r3, %r1, %r2;", lambda a, b: max(min(signed(a), signed(b)), 0)),
    IntegerCase("max.relu.s32 %r3, %r1, %r2;", lambda a, b: max(signed(a), signed(b), 0)),
    IntegerCase("max.u32 %r3, %r1, %r2;", max),
    IntegerCase("and.b32 %r3, %r1, %r2;", lambda a, b: a & b),
    IntegerCase("xor.b32 %r3, %r1, %r2;", lambda a, b: a ^ b),
    IntegerCase("not.b32 %r3, %r1;", lambda a, b: ~a),
    IntegerCase("neg.s32 %r3, %r1;", lambda a, b: -a),
    IntegerCase("abs.s32 %r3, %r1;", lambda a, b: abs(signed(a))),
    IntegerCase("shl.b32 %r3, %r1, %r2;", lambda a, b: a << b if b < 32 else 0),
    IntegerCase("shr.u32 %r3, %r1, %r2;", lambda a, b: a >> b if b < 32 else 0),
    IntegerCase("shr.s32 %r3, %r1, %r2;", shift_right_signed),
    IntegerCase("shf.l.wrap.b32 %r3, %r1, %r2, 7;", funnel_left),
    IntegerCase("shf.r.clamp.b32 %r3, %r1, %r2, 40;", lambda a, b: b),
    IntegerCase("prmt.b32 %r3, %r1, %r2, 0x4163;", permute),
    IntegerCase("bfe.u32 %r3, %r1, 5, 9;", lambda a, b: bit_field(a, 5, 9)),
    IntegerCase("bfe.s32 %r3, %r1, 5, 9;", lambda a, b: signed(bit_field(a, 5, 9) << 23) >> 23),
    IntegerCase("bfi.b32 %r3, %r1, %r2, 4, 8;", lambda a, b: b & ~0xFF0 | (a & 0xFF) << 4),
    IntegerCase("lop3.b32 %r3, %r1, %r2, 0x0F0F0F0F, 0x96;", lop3_majority),
    IntegerCase("popc.b32 %r3, %r1;", lambda a, b: a.bit_count()),
    IntegerCase("clz.b32 %r3, %r1;", lambda a, b: 32 - a.bit_length()),
    IntegerCase("brev.b32 %r3, %r1;", lambda a, b: int(f"{a:032b}"[::-1], 2)),
    IntegerCase("bfind.u32 %r3, %r1;", lambda a, b: a.bit_length() - 1),
    IntegerCase("add.sat.s32 %r3, %r1, %r2;", lambda a, b: max(-(1 << 31), min((1 << 31) - 1, signed(a) + signed(b)))),
    IntegerCase("{ .reg .b32 t; add.cc.u32 t, %r1, %r2; addc.u32 %r3, 0, 0; }", lambda a, b: (a + b) >> 32),
    IntegerCase("{ .reg .b32 t; sub.cc.u32 t, %r1, %r2; subc.u32 %r3, 0, 0; }", lambda a, b: -(a < b)),
    IntegerCase("{ .reg .b16 t; cvt.u16.u32 t, %r1; cvt.s32.s16 %r3, t; }", lambda a, b: signed(a, 16)),
    IntegerCase("{ .reg .b64 t, u; mul.wide.u32 t, %r1, %r2; cvt.s64.s32 u, t; shr.u64 u, u, 16; cvt.u32.u64 %r3, u; }",
                lambda a, b: signed(a * b & 0xFFFFFFFF) >> 16),
    IntegerCase("{ .reg .b64 t; mul.wide.u32 t, %r1, %r2; cvt.s32.s16 %r3, t; }",
                lambda a, b: signed(a * b & 0xFFFF, 16)),
    IntegerCase("{ .reg .b64 t; mul.wide.u32 t, %r1, %r2; cvt.u32.u8 %r3, t; }", lambda a, b: a * b & 0xFF),
    IntegerCase("cvt.u32.s16 %r3, %r1;", lambda a, b: signed(a & 0xFFFF, 16)),
    IntegerCase("{ .reg .b16 x, y; mov.b32 {x, y}, %r1; mov.b32 %r3, {y, x}; }", lambda a, b: a >> 16 | a << 16),
    IntegerCase("{ .reg .b64 t; mul.wide.s32 t, %r1, %r2; shr.u64 t, t, 32; cvt.u32.u64 %r3, t; }",
                lambda a, b: signed(a) * signed(b) >> 32),
    IntegerCase("{ .reg .pred p, q; setp.lt.s32 p|q, %r1, %r2; selp.b32 %r3, 5, 9, p; }",
                lambda a, b: 5 if signed(a) < signed(b) else 9),
    IntegerCase("{ .reg .pred p, q; setp.hi.u32 p, %r1, %r2; setp.ne.or.s32 q, %r1, 0, !p; selp.b32 %r3, 1, 0, q; }",
                lambda a, b: int(a != 0 or not a > b)),
    IntegerCase("dp4a.s32.s32 %r3, %r1, %r2, 3;",
                lambda a, b: 3 + sum(signed(a >> 8 * k, 8) * signed(b >> 8 * k, 8) for k in range(4))),
]  # fmt: skip


@pytest.mark.parametrize("case", INTEGER_CASES, ids=str)
def test_integer(case: IntegerCase) -> None:
    values = pairs()
    for (a, b), actual in zip(values, run_pairs(case.statement, values)):
        assert actual == case.reference(a, b) & 0xFFFFFFFF, f"a={a:#x} b={b:#x}"


@pytest.mark.parametrize("op", ["div", "rem"])
@pytest.mark.parametrize("is_signed", [True, False])
def test_division(op: str, is_signed: bool) -> None:
    values = [(a, b) for a, b in pairs() if b and not (a == 1 << 31 and b == 0xFFFFFFFF)]
    actual = run_pairs(f"{op}.{'s' if is_signed else 'u'}32 %r3, %r1, %r2;", values)
    for (a, b), result in zip(values, actual):
        x, y = (signed(a), signed(b)) if is_signed else (a, b)
        quotient = divide_toward_zero(x, y)
        assert result == (quotient if op == "div" else x - y * quotient) & 0xFFFFFFFF


FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    3.25,
    1e-3,
    -7e5,
    65504.0,
    1e-30,
    math.inf,
    -math.inf,
    math.nan,
    448.0,
    0.0625,
]


def float_pairs() -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(3)
    random = (torch.randn(64, generator=generator) * 4).tolist()
    values = [from_float(v) for v in FLOATS + random]
    return [(a, b) for a in values[:20] for b in values[:20]] + list(zip(values, reversed(values)))


def float32(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[int, int], int]:
    def reference(a: int, b: int) -> int:
        return from_float(float(function(torch.tensor(to_float(a)), torch.tensor(to_float(b)))))

    return reference


FLOAT_CASES = [
    IntegerCase("add.f32 %f3, %f1, %f2;", float32(torch.add)),
    IntegerCase("mul.rn.f32 %f3, %f1, %f2;", float32(torch.mul)),
    IntegerCase("div.rn.f32 %f3, %f1, %f2;", float32(torch.div)),
    IntegerCase("max.f32 %f3, %f1, %f2;", float32(torch.fmax)),
    IntegerCase("min.NaN.f32 %f3, %f1, %f2;", float32(torch.minimum)),
    IntegerCase("neg.f32 %f3, %f1;", float32(lambda a, b: -a)),
    IntegerCase("sqrt.rn.f32 %f3, %f1;", float32(lambda a, b: a.double().sqrt())),
    IntegerCase("add.sat.f32 %f3, %f1, %f2;", float32(lambda a, b: torch.nan_to_num(a + b, 0).clamp(0, 1))),
    IntegerCase("cvt.rzi.s32.f32 %r3, %f1;",
                lambda a, b: 0 if math.isnan(to_float(a)) else
                int(max(-(2.0**31), min(2.0**31 - 1, to_float(a))))),
    IntegerCase("cvt.rmi.f32.f32 %f3, %f1;", float32(lambda a, b: a.floor())),
    IntegerCase("cvt.rn.f32.s32 %f3, %r1;", lambda a, b: from_float(float(torch.tensor(signed(a)).to(torch.float32)))),
    IntegerCase("{ .reg .b16 t; cvt.rn.f16.f32 t, %f1; cvt.f32.f16 %f3, t; }", float32(lambda a, b: a.half().float())),
    IntegerCase("{ .reg .b16 t; cvt.rn.bf16.f32 t, %f1; cvt.f32.bf16 %f3, t; }",
                float32(lambda a, b: a.bfloat16().float())),
    IntegerCase("{ .reg .f64 t; cvt.f64.f32 t, %f1; cvt.rn.f32.f64 %f3, t; }", float32(lambda a, b: a)),
]  # fmt: skip


@pytest.mark.parametrize("case", FLOAT_CASES, ids=str)
def test_float(case: IntegerCase) -> None:
    values = float_pairs()
    for (a, b), actual in zip(values, run_pairs(case.statement, values)):
        expected, got = to_float(case.reference(a, b)), to_float(actual)
        if case.statement.startswith("cvt.rzi"):
            assert actual == case.reference(a, b) & 0xFFFFFFFF
        else:
            assert got == expected or (math.isnan(got) and math.isnan(expected)), f"{to_float(a)} {to_float(b)}"


@pytest.mark.parametrize(("name", "dtype"), [("e4m3x2", torch.float8_e4m3fn), ("e5m2x2", torch.float8_e5m2)])
def test_float8_conversion(name: str, dtype: torch.dtype) -> None:
    values = [v for v in float_pairs() if not math.isinf(to_float(v[0])) and not math.isinf(to_float(v[1]))]
    statement = f"{{ .reg .b16 t; cvt.rn.satfinite.{name}.f32 t, %f1, %f2; cvt.u32.u16 %r3, t; }}"
    limit = torch.finfo(dtype).max
    for (a, b), actual in zip(values, run_pairs(statement, values)):
        for value, byte in ((b, actual & 0xFF), (a, actual >> 8)):
            expected = torch.tensor(to_float(value)).clamp(-limit, limit).to(dtype).float().item()
            got = torch.tensor(byte, dtype=torch.uint8).view(dtype).float().item()
            assert got == expected or (math.isnan(got) and math.isnan(expected)), to_float(value)


@pytest.mark.parametrize(("name", "dtype"), [("e4m3x2", torch.float8_e4m3fn), ("e5m2x2", torch.float8_e5m2)])
def test_float8_to_half(name: str, dtype: torch.dtype) -> None:
    codes = [(a, 0) for a in range(0, 65536, 257)] + [(a << 8 | (255 - a), 0) for a in range(256)]
    statement = f"{{ .reg .b16 t; cvt.u16.u32 t, %r1; cvt.rn.f16x2.{name} %r3, t; }}"
    for (code, _), actual in zip(codes, run_pairs(statement, codes)):
        for byte, half in ((code & 0xFF, actual & 0xFFFF), (code >> 8, actual >> 16)):
            expected = torch.tensor(byte, dtype=torch.uint8).view(dtype).half()
            got = torch.tensor(half, dtype=torch.int32).to(torch.int16).view(torch.half)
            assert torch.equal(got, expected) or (got.isnan() and expected.isnan())


@pytest.mark.parametrize(("name", "dtype"), [("f16x2", torch.half), ("bf16x2", torch.bfloat16)])
@pytest.mark.parametrize("op", ["add", "mul", "max", "fma"])
def test_packed_half(name: str, dtype: torch.dtype, op: str) -> None:
    generator = torch.Generator().manual_seed(11)
    a, b = (torch.randn(128, generator=generator).to(dtype) for _ in range(2))
    words = [[w & 0xFFFFFFFF for w in x.view(torch.int32).tolist()] for x in (a, b)]
    operands = "%r1, %r2, %r1" if op == "fma" else "%r1, %r2"
    statement = f"{op}{'' if op == 'max' else '.rn'}.{name} %r3, {operands};"
    actual = torch.tensor([signed(w) for w in run_pairs(statement, list(zip(*words)))], dtype=torch.int32)
    x, y = a.float(), b.float()
    expected = {
        "add": x + y,
        "mul": x * y,
        "max": torch.maximum(x, y),
        "fma": x * y + x,
    }[op].to(dtype)
    assert torch.equal(actual.view(dtype), expected)


def test_directed_rounding() -> None:
    values = [
        (from_float(1.0), from_float(2.0**-30)),
        (from_float(-1.0), from_float(-(2.0**-30))),
    ]
    up = run_pairs("add.rp.f32 %f3, %f1, %f2;", values)
    down = run_pairs("add.rm.f32 %f3, %f1, %f2;", values)
    zero = run_pairs("add.rz.f32 %f3, %f1, %f2;", values)
    assert [to_float(v) for v in up[:2]] == [1 + 2.0**-23, -1.0]
    assert [to_float(v) for v in down[:2]] == [1.0, -(1 + 2.0**-23)]
    assert [to_float(v) for v in zero[:2]] == [1.0, -1.0]


def test_every_statement_is_accepted_by_ptxas() -> None:
    if snippet.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    body = "\n".join(case.statement for case in INTEGER_CASES + FLOAT_CASES)
    assert snippet.ptxas_error(snippet.kernel_text(body)) is None


def test_unknown_forms_are_named_at_load() -> None:
    for statement, name in (
        ("txq.width.b32 %r1, [%rd1];", "txq.width.b32"),
        ("add.made_up.s32 %r1, %r2, %r3;", "made_up"),
        (
            "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d0}, {%d1}, {%d2}, {%d3};",
            "m8n8k4",
        ),
    ):
        with pytest.raises(RuntimeError, match=name):
            snippet.run(statement)
