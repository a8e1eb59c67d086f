// cvt: between integers, floats, and the narrow float formats.
#include <cmath>

#include "decoder.h"
#include "number_formats.h"
#include "scalar_handlers.h"
#include "text.h"

namespace ptxemu {
namespace {

// ---------------------------------------------------------------- integers

template <class D>
Handler to_integer(const std::string& from) {
  if (from == "u8") return unary<D, u16>([](u16 a) { return u8(a); });
  if (from == "s8") return unary<D, u16>([](u16 a) { return s8(a); });
  if (from == "u16" || from == "b16") return unary<D, u16>(identity);
  if (from == "s16") return unary<D, s16>(identity);
  if (from == "u32" || from == "b32") return unary<D, u32>(identity);
  if (from == "s32") return unary<D, s32>(identity);
  if (from == "u64" || from == "b64") return unary<D, u64>(identity);
  if (from == "s64") return unary<D, s64>(identity);
  return nullptr;
}

template <class A>
Handler to_byte(bool is_signed) {
  return is_signed ? unary<u16, A>([](A a) { return u16(s16(s8(a))); }) : unary<u16, A>([](A a) { return u16(u8(a)); });
}

/// cvt.u32.u8 whose source is kept in a 32-bit register.
Handler wide_byte_source(const std::string& to, const std::string& from) {
  const bool is_signed = from == "s8";
  switch (type_class(to)) {
    case RegClass::B16: return to_byte<u32>(is_signed);
    case RegClass::B32:
      return is_signed ? unary<s32, u32>([](u32 a) { return s8(a); }) : unary<u32, u32>([](u32 a) { return u8(a); });
    default:
      return is_signed ? unary<s64, u32>([](u32 a) { return s8(a); }) : unary<u64, u32>([](u32 a) { return u8(a); });
  }
}

/// cvt.s64.s32 and the like whose source is kept in a register wider than its type: the low bits count.
template <class D, class A>
Handler low_bits(const std::string& from) {
  if (from == "u8") return unary<D, A>([](A a) { return D(u8(a)); });
  if (from == "s8") return unary<D, A>([](A a) { return D(s8(a)); });
  if (from == "u16" || from == "b16") return unary<D, A>([](A a) { return D(u16(a)); });
  if (from == "s16") return unary<D, A>([](A a) { return D(s16(a)); });
  if (from == "u32" || from == "b32") return unary<D, A>([](A a) { return D(u32(a)); });
  if (from == "s32") return unary<D, A>([](A a) { return D(s32(a)); });
  return nullptr;
}

template <class A>
Handler wide_source(const std::string& to, const std::string& from) {
  switch (type_class(to)) {
    case RegClass::B32: return low_bits<u32, A>(from);
    case RegClass::B64: return low_bits<u64, A>(from);
    default: return nullptr;
  }
}

Handler integer_convert(const std::string& to, const std::string& from) {
  if (to == "u16" || to == "b16") return to_integer<u16>(from);
  if (to == "s16") return to_integer<s16>(from);
  if (to == "u32" || to == "b32") return to_integer<u32>(from);
  if (to == "s32") return to_integer<s32>(from);
  if (to == "u64" || to == "b64") return to_integer<u64>(from);
  if (to == "s64") return to_integer<s64>(from);
  if (to == "u8" || to == "s8") {
    const RegClass cls = type_class(from);
    if (cls == RegClass::B32) return to_byte<u32>(to == "s8");
    if (cls == RegClass::B16) return to_byte<u16>(to == "s8");
    if (cls == RegClass::B64) return to_byte<u64>(to == "s8");
  }
  return nullptr;
}

// ---------------------------------------------------------------- float to integer

template <class D, class A>
D clamp_to(A a) {
  using Limits = std::numeric_limits<D>;
  if (std::isnan(a)) return 0;
  if (a >= A(Limits::max())) return Limits::max();
  if (a <= A(Limits::min())) return Limits::min();
  return D(a);
}

enum class Rounding { Zero, Nearest, Down, Up };

template <Rounding kMode, class A>
A round_integral(A a) {
  switch (kMode) {
    case Rounding::Zero: return std::trunc(a);
    case Rounding::Nearest: return std::nearbyint(a);
    case Rounding::Down: return std::floor(a);
    default: return std::ceil(a);
  }
}

template <class D, class Store, class A, class F>
Handler float_to_integer(F, const Opcode& op) {
  if (op.has("rzi")) return unary<Store, A>([](A a) { return Store(clamp_to<D>(round_integral<Rounding::Zero>(F{}(a)))); });
  if (op.has("rni"))
    return unary<Store, A>([](A a) { return Store(clamp_to<D>(round_integral<Rounding::Nearest>(F{}(a)))); });
  if (op.has("rmi")) return unary<Store, A>([](A a) { return Store(clamp_to<D>(round_integral<Rounding::Down>(F{}(a)))); });
  if (op.has("rpi")) return unary<Store, A>([](A a) { return Store(clamp_to<D>(round_integral<Rounding::Up>(F{}(a)))); });
  return nullptr;
}

template <class A, class F>
Handler float_to_integer_type(F f, const Opcode& op, const std::string& to) {
  op.accept({"sat", "ftz"});
  if (to == "s8") return float_to_integer<s8, u16, A>(f, op);
  if (to == "u8") return float_to_integer<u8, u16, A>(f, op);
  if (to == "s16") return float_to_integer<s16, s16, A>(f, op);
  if (to == "u16") return float_to_integer<u16, u16, A>(f, op);
  if (to == "s32") return float_to_integer<s32, s32, A>(f, op);
  if (to == "u32") return float_to_integer<u32, u32, A>(f, op);
  if (to == "s64") return float_to_integer<s64, s64, A>(f, op);
  if (to == "u64") return float_to_integer<u64, u64, A>(f, op);
  return nullptr;
}

// ---------------------------------------------------------------- integer to float

template <class D, class F>
Handler integer_to_float(F, const std::string& from) {
  if (from == "u8") return unary<D, u16>([](u16 a) { return F{}(u8(a)); });
  if (from == "s8") return unary<D, u16>([](u16 a) { return F{}(s8(a)); });
  if (from == "u16") return unary<D, u16>([](u16 a) { return F{}(a); });
  if (from == "s16") return unary<D, s16>([](s16 a) { return F{}(a); });
  if (from == "u32") return unary<D, u32>([](u32 a) { return F{}(a); });
  if (from == "s32") return unary<D, s32>([](s32 a) { return F{}(a); });
  if (from == "u64") return unary<D, u64>([](u64 a) { return F{}(a); });
  if (from == "s64") return unary<D, s64>([](s64 a) { return F{}(a); });
  return nullptr;
}

Handler integer_to_float_type(const std::string& to, const std::string& from) {
  if (to == "f32") return integer_to_float<float>([](auto a) { return float(a); }, from);
  if (to == "f64") return integer_to_float<double>([](auto a) { return double(a); }, from);
  if (to == "f16") return integer_to_float<u16>([](auto a) { return float_to_half(float(a)); }, from);
  if (to == "bf16") return integer_to_float<u16>([](auto a) { return float_to_bf16(float(a)); }, from);
  return nullptr;
}

// ---------------------------------------------------------------- float to float

Handler f32_to_f32(const Opcode& op) {
  const bool sat = op.has("sat");
  op.accept({"ftz"});
  if (op.has("rmi")) return unary<float, float>([](float a) { return floorf(a); });
  if (op.has("rpi")) return unary<float, float>([](float a) { return ceilf(a); });
  if (op.has("rni")) return unary<float, float>([](float a) { return nearbyintf(a); });
  if (op.has("rzi")) return unary<float, float>([](float a) { return truncf(a); });
  if (sat) return unary<float, float>([](float a) { return a > 0 ? (a < 1 ? a : 1.f) : 0.f; });
  return unary<float, float>(identity);
}

float relu_of(float a) { return a > 0 ? a : 0.f; }
float finite_half(float a) { return a > 65504.f ? 65504.f : a < -65504.f ? -65504.f : a; }

Handler narrow_from_f32(const Opcode& op, const std::string& to) {
  const bool relu = op.has("relu"), zero = op.has("rz"), finite = op.has("satfinite");
  op.accept({"rn", "ftz", "sat"});
  if (to == "f16") {
    if (relu) return unary<u16, float>([](float a) { return float_to_half(relu_of(a)); });
    if (finite) return unary<u16, float>([](float a) { return float_to_half(finite_half(a)); });
    return zero ? unary<u16, float>([](float a) { return float_to_half_toward_zero(a); })
                : unary<u16, float>([](float a) { return float_to_half(a); });
  }
  if (finite) return nullptr;
  if (relu) return unary<u16, float>([](float a) { return float_to_bf16(relu_of(a)); });
  return zero ? unary<u16, float>([](float a) { return float_to_bf16_toward_zero(a); })
              : unary<u16, float>([](float a) { return float_to_bf16(a); });
}

/// cvt.<pair>.f32 d, a, b: a goes to the upper half.
template <class F>
Handler pack_halves(F) {
  return binary<u32, float, float>([](float a, float b) { return u32(F{}(a)) << 16 | F{}(b); });
}
template <class F>
Handler pack_bytes(F) {
  return binary<u16, float, float>([](float a, float b) { return u16(F{}(a)) << 8 | F{}(b); });
}

Handler pair_from_f32(const Opcode& op, const std::string& to) {
  const bool relu = op.has("relu"), zero = op.has("rz"), finite = op.has("satfinite");
  op.accept({"rn"});
  if (to == "bf16x2" && !finite) {
    if (relu) return pack_halves([](float a) { return float_to_bf16(relu_of(a)); });
    return zero ? pack_halves([](float a) { return float_to_bf16_toward_zero(a); })
                : pack_halves([](float a) { return float_to_bf16(a); });
  }
  if (to == "f16x2") {
    if (relu) return pack_halves([](float a) { return float_to_half(relu_of(a)); });
    if (finite) return pack_halves([](float a) { return float_to_half(finite_half(a)); });
    return zero ? pack_halves([](float a) { return float_to_half_toward_zero(a); })
                : pack_halves([](float a) { return float_to_half(a); });
  }
  if (!finite || zero) return nullptr;
  if (to == "e4m3x2")
    return relu ? pack_bytes([](float a) { return E4m3::from_float(relu_of(a)); })
                : pack_bytes([](float a) { return E4m3::from_float(a); });
  if (to == "e5m2x2")
    return relu ? pack_bytes([](float a) { return E5m2::from_float(relu_of(a)); })
                : pack_bytes([](float a) { return E5m2::from_float(a); });
  return nullptr;
}

template <class Format>
Handler float8_to_halves() {
  return unary<u32, u16>([](u16 a) {
    return float_to_half(Format::to_float(u8(a))) | u32(float_to_half(Format::to_float(u8(a >> 8)))) << 16;
  });
}

template <class Format>
Handler halves_to_float8() {
  return unary<u16, u32>([](u32 a) {
    return u16(Format::from_float(half_to_float(a)) | Format::from_float(half_to_float(a >> 16)) << 8);
  });
}

Handler float_convert(const Opcode& op, const std::string& to, const std::string& from) {
  if (to == "f32" && from == "f32") return f32_to_f32(op);
  if (from == "f32" && (to == "f16" || to == "bf16")) return narrow_from_f32(op, to);
  if (to == "tf32" || (to == "b32" && op.has("tf32"))) {
    if (op.has("rna")) return unary<u32, float>([](float a) { return float_to_tf32_away(a); });
    op.accept({"rn", "satfinite"});
    return unary<u32, float>([](float a) { return float_to_tf32_even(a); });
  }
  op.accept({"rn", "ftz", "rz"});
  if (to == "f32" && from == "f16") return unary<float, u16>([](u16 a) { return half_to_float(a); });
  if (to == "f32" && from == "bf16") return unary<float, u16>([](u16 a) { return bf16_to_float(a); });
  if (to == "f32" && from == "f64") return unary<float, double>([](double a) { return float(a); });
  if (to == "f64" && from == "f32") return unary<double, float>([](float a) { return double(a); });
  if (to == "f64" && from == "f16") return unary<double, u16>([](u16 a) { return double(half_to_float(a)); });
  if (to == "f16" && from == "f64") return unary<u16, double>([](double a) { return float_to_half(float(a)); });
  if (to == "f16" && from == "bf16") return unary<u16, u16>([](u16 a) { return float_to_half(bf16_to_float(a)); });
  if (to == "bf16" && from == "f16") return unary<u16, u16>([](u16 a) { return float_to_bf16(half_to_float(a)); });
  if (to == "f64" && from == "f64") {
    if (op.has("rmi")) return unary<double, double>([](double a) { return std::floor(a); });
    if (op.has("rpi")) return unary<double, double>([](double a) { return std::ceil(a); });
    if (op.has("rzi")) return unary<double, double>([](double a) { return std::trunc(a); });
    if (op.has("rni")) return unary<double, double>([](double a) { return std::nearbyint(a); });
  }
  if (to == from && to == "f16") {
    if (op.has("rmi")) return unary<u16, u16>([](u16 a) { return float_to_half(floorf(half_to_float(a))); });
    if (op.has("rpi")) return unary<u16, u16>([](u16 a) { return float_to_half(ceilf(half_to_float(a))); });
    if (op.has("rzi")) return unary<u16, u16>([](u16 a) { return float_to_half(truncf(half_to_float(a))); });
    if (op.has("rni")) return unary<u16, u16>([](u16 a) { return float_to_half(nearbyintf(half_to_float(a))); });
  }
  return nullptr;
}

bool is_float_type(const std::string& type) {
  return type == "f16" || type == "bf16" || type == "f32" || type == "f64" || type == "tf32";
}

}  // namespace

bool Decoder::decode_convert(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("cvt")) return false;
  inst.counter = CounterClass::Convert;
  const std::string to = op.part(op.parts.size() - 2), from = op.type;
  const RegClass b16 = RegClass::B16, b32 = RegClass::B32;

  if (from == "f32" && contains(to, "x2")) {
    push_all(inst, operands, {contains(to, "e4m3") || contains(to, "e5m2") ? b16 : b32, b32, b32}, true);
    inst.handler = pair_from_f32(op, to);
    return true;
  }
  if (to == "f16x2" && (from == "e4m3x2" || from == "e5m2x2")) {
    op.accept({"rn"});
    if (op.has("relu")) return false;
    push_all(inst, operands, {b32, b16});
    inst.handler = from == "e4m3x2" ? float8_to_halves<E4m3>() : float8_to_halves<E5m2>();
    return true;
  }
  if (from == "f16x2" && (to == "e4m3x2" || to == "e5m2x2")) {
    op.accept({"rn", "satfinite"});
    if (op.has("relu")) return false;
    push_all(inst, operands, {b16, b32});
    inst.handler = to == "e4m3x2" ? halves_to_float8<E4m3>() : halves_to_float8<E5m2>();
    return true;
  }

  const Register destination = operand(operands.at(0), type_class(to));
  const Register source = operand(operands.at(1), type_class(from), is_float_type(from));
  inst.operands = {destination.id, source.id};
  inst.classes = {destination.cls, source.cls};
  if (!is_float_type(to) && !is_float_type(from)) {
    op.accept({"sat"});
    if (op.has("sat")) return false;
    inst.handler = type_bytes(from) == 1 && source.cls == b32 ? wide_byte_source(to, from) : integer_convert(to, from);
    if (source.cls == RegClass::B64 && type_bytes(from) < 8) inst.handler = wide_source<u64>(to, from);
    if (source.cls == b32 && type_bytes(from) == 2) inst.handler = wide_source<u32>(to, from);
    if ((to == "u8" || to == "s8") && destination.cls == b32)
      inst.handler = to == "s8" ? unary<s32, u32>([](u32 a) { return s8(a); }) : unary<u32, u32>([](u32 a) { return u8(a); });
  } else if (is_float_type(to) && is_float_type(from)) {
    inst.handler = float_convert(op, to, from);
  } else if (is_float_type(to)) {
    op.accept({"rn", "rz", "rm", "rp", "ftz", "sat"});
    if (op.has("rm") || op.has("rp") || op.has("sat")) return false;
    inst.handler = integer_to_float_type(to, from);
  } else {
    if (from == "f32") inst.handler = float_to_integer_type<float>([](float a) { return a; }, op, to);
    if (from == "f64") inst.handler = float_to_integer_type<double>([](double a) { return a; }, op, to);
    if (from == "f16") inst.handler = float_to_integer_type<u16>([](u16 a) { return half_to_float(a); }, op, to);
    if (from == "bf16") inst.handler = float_to_integer_type<u16>([](u16 a) { return bf16_to_float(a); }, op, to);
  }
  return true;
}

}  // namespace ptxemu
