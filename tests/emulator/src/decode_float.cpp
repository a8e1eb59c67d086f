// Floating-point arithmetic: f32, f64, and f16 / bf16 alone or in pairs.
//
// Approximate instructions (ex2, lg2, rcp, tanh, ...) use the C library: compare with a tolerance.
#include <cfenv>
#include <cmath>
#include <limits>

#include "decoder.h"
#include "number_formats.h"
#include "scalar_handlers.h"
#include "text.h"

namespace ptxemu {
namespace {

// ---------------------------------------------------------------- f32 and f64

constexpr auto add = [](auto a, auto b) { return a + b; };
constexpr auto sub = [](auto a, auto b) { return a - b; };
constexpr auto mul = [](auto a, auto b) { return a * b; };
constexpr auto div_ = [](auto a, auto b) { return a / b; };
constexpr auto fma_ = [](auto a, auto b, auto c) { return std::fma(a, b, c); };
/// The number where one operand is NaN.
constexpr auto max_number = [](auto a, auto b) { return (a > b || b != b) ? a : (a == b && std::signbit(a)) ? b : a == b ? a : b; };
constexpr auto min_number = [](auto a, auto b) { return (a < b || b != b) ? a : (a == b && std::signbit(a)) ? a : b; };
constexpr auto max_nan = [](auto a, auto b) {
  using T = decltype(a);
  return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : a > b ? a : b;
};
constexpr auto min_nan = [](auto a, auto b) {
  using T = decltype(a);
  return a != a || b != b ? std::numeric_limits<T>::quiet_NaN() : a < b ? a : b;
};

template <bool kFlush, bool kSaturate>
float finish(float value) {
  if (kFlush) value = flush_denormal(value);
  if (kSaturate) value = value > 0 ? (value < 1 ? value : 1.f) : 0.f;
  return value;
}

template <bool kFlush, bool kSaturate, class F>
Handler float_unary(F) {
  return unary<float, float>([](float a) { return finish<kFlush, kSaturate>(F{}(finish<kFlush, false>(a))); });
}
template <bool kFlush, bool kSaturate, class F>
Handler float_binary(F) {
  return binary<float, float, float>([](float a, float b) {
    return finish<kFlush, kSaturate>(F{}(finish<kFlush, false>(a), finish<kFlush, false>(b)));
  });
}
template <bool kFlush, bool kSaturate, class F>
Handler float_ternary(F) {
  return ternary<float, float, float, float>([](float a, float b, float c) {
    return finish<kFlush, kSaturate>(
        F{}(finish<kFlush, false>(a), finish<kFlush, false>(b), finish<kFlush, false>(c)));
  });
}

// One line a function instead of four: the flush and saturate variants of each.
#define VARIANTS(make, f, flush, saturate)                               \
  ((flush) ? ((saturate) ? make<true, true>(f) : make<true, false>(f)) \
           : ((saturate) ? make<false, true>(f) : make<false, false>(f)))

Handler f32_unary(const Opcode& op, bool ftz, bool sat) {
  if (op.is("ex2")) return VARIANTS(float_unary, [](float a) { return exp2f(a); }, ftz, sat);
  if (op.is("lg2")) return VARIANTS(float_unary, [](float a) { return log2f(a); }, ftz, sat);
  if (op.is("rcp")) return VARIANTS(float_unary, [](float a) { return 1.f / a; }, ftz, sat);
  if (op.is("sqrt")) return VARIANTS(float_unary, [](float a) { return sqrtf(a); }, ftz, sat);
  if (op.is("rsqrt")) return VARIANTS(float_unary, [](float a) { return 1.f / sqrtf(a); }, ftz, sat);
  if (op.is("neg")) return VARIANTS(float_unary, [](float a) { return -a; }, ftz, sat);
  if (op.is("abs")) return VARIANTS(float_unary, [](float a) { return fabsf(a); }, ftz, sat);
  if (op.is("tanh")) return VARIANTS(float_unary, [](float a) { return tanhf(a); }, ftz, sat);
  if (op.is("sin")) return VARIANTS(float_unary, [](float a) { return sinf(a); }, ftz, sat);
  if (op.is("cos")) return VARIANTS(float_unary, [](float a) { return cosf(a); }, ftz, sat);
  return nullptr;
}

Handler f32_binary(const Opcode& op, bool ftz, bool sat, bool nan) {
  if (op.is("add")) return VARIANTS(float_binary, add, ftz, sat);
  if (op.is("sub")) return VARIANTS(float_binary, sub, ftz, sat);
  if (op.is("mul")) return VARIANTS(float_binary, mul, ftz, sat);
  if (op.is("div")) return VARIANTS(float_binary, div_, ftz, sat);
  if (op.is("max")) return nan ? VARIANTS(float_binary, max_nan, ftz, false) : VARIANTS(float_binary, max_number, ftz, false);
  if (op.is("min")) return nan ? VARIANTS(float_binary, min_nan, ftz, false) : VARIANTS(float_binary, min_number, ftz, false);
  if (op.is("copysign")) return VARIANTS(float_binary, [](float a, float b) { return std::copysign(b, a); }, false, false);
  return nullptr;
}

// Directed rounding is rare (range reductions); the mode of the host is switched around the lanes.

struct RoundingMode {
  int before = std::fegetround();
  explicit RoundingMode(s64 mode) { std::fesetround(int(mode)); }
  ~RoundingMode() { std::fesetround(before); }
};

template <class T, class F>
[[gnu::noinline]] T opaque(F f, T a, T b, T c) {  // keeps the compiler from folding across the mode switch
  volatile T x = a, y = b, z = c;
  volatile T result = f(x, y, z);
  return result;
}

template <class T, int kSources, class F>
Handler rounded(F) {
  return [](Warp& warp, const Instruction& inst) {
    const RoundingMode mode(inst.immediate);
    FOR_ACTIVE_LANES (warp, lane) {
      const auto at = [&](int k) { return k <= kSources ? lanes<T>(warp, inst.operands[k])[lane] : T(0); };
      T result = opaque<T>([](T a, T b, T c) { return T(F{}(a, b, c)); }, at(1), at(2), at(3));
      if (inst.saturate) result = result > 0 ? (result < 1 ? result : T(1)) : T(0);
      lanes<T>(warp, inst.operands[0])[lane] = result;
    }
  };
}

template <class T>
Handler rounded_handler(const Opcode& op, int& sources) {
  sources = 2;
  if (op.is("add")) return rounded<T, 2>([](T a, T b, T) { return a + b; });
  if (op.is("sub")) return rounded<T, 2>([](T a, T b, T) { return a - b; });
  if (op.is("mul")) return rounded<T, 2>([](T a, T b, T) { return a * b; });
  if (op.is("div")) return rounded<T, 2>([](T a, T b, T) { return a / b; });
  sources = 3;
  if (op.is("fma") || op.is("mad")) return rounded<T, 3>([](T a, T b, T c) { return std::fma(a, b, c); });
  sources = 1;
  if (op.is("rcp")) return rounded<T, 1>([](T a, T, T) { return T(1) / a; });
  if (op.is("sqrt")) return rounded<T, 1>([](T a, T, T) { return std::sqrt(a); });
  return nullptr;
}

Handler f64_handler(const Opcode& op, int& sources) {
  sources = 2;
  if (op.is("add")) return binary<double, double, double>(add);
  if (op.is("sub")) return binary<double, double, double>(sub);
  if (op.is("mul")) return binary<double, double, double>(mul);
  if (op.is("div")) return binary<double, double, double>(div_);
  if (op.is("max")) return binary<double, double, double>(max_number);
  if (op.is("min")) return binary<double, double, double>(min_number);
  if (op.is("copysign")) return binary<double, double, double>([](double a, double b) { return std::copysign(b, a); });
  sources = 3;
  if (op.is("fma") || op.is("mad")) return ternary<double, double, double, double>(fma_);
  sources = 1;
  if (op.is("neg")) return unary<double, double>([](double a) { return -a; });
  if (op.is("abs")) return unary<double, double>([](double a) { return std::fabs(a); });
  if (op.is("rcp")) return unary<double, double>([](double a) { return 1 / a; });
  if (op.is("sqrt")) return unary<double, double>([](double a) { return std::sqrt(a); });
  if (op.is("rsqrt")) return unary<double, double>([](double a) { return 1 / std::sqrt(a); });
  return nullptr;
}

s64 rounding_mode(const Opcode& op) {
  if (op.has("rz")) return FE_TOWARDZERO;
  if (op.has("rm")) return FE_DOWNWARD;
  if (op.has("rp")) return FE_UPWARD;
  op.has("rn");
  return FE_TONEAREST;
}

template <class T>
Handler test_property(const std::string& name) {
  const auto make = [](auto f) -> Handler {
    return [](Warp& warp, const Instruction& inst) {
      u32 result = 0;
      for (int l = 0; l < kWarpSize; l++) result |= u32(decltype(f){}(lanes<T>(warp, inst.operands[1])[l])) << l;
      set_predicate(warp, inst.operands[0], result);
    };
  };
  if (name == "finite") return make([](T a) { return std::isfinite(a); });
  if (name == "infinite") return make([](T a) { return std::isinf(a); });
  if (name == "number") return make([](T a) { return !std::isnan(a); });
  if (name == "notanumber") return make([](T a) { return std::isnan(a); });
  if (name == "normal") return make([](T a) { return std::isnormal(a); });
  if (name == "subnormal") return make([](T a) { return std::fpclassify(a) == FP_SUBNORMAL; });
  return nullptr;
}

}  // namespace

bool Decoder::decode_float(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (op.type != "f32" && op.type != "f64") return false;
  inst.counter = CounterClass::Float;
  const RegClass cls = op.cls;
  if (op.is("testp")) {
    inst.handler = op.type == "f32" ? test_property<float>(op.part(1)) : test_property<double>(op.part(1));
    inst.operands = {operand(operands.at(0), RegClass::Pred).id, operand(operands.at(1), cls, true).id};
    return true;
  }
  const bool flush = op.has("ftz"), nan = op.has("NaN");
  inst.saturate = op.has("sat");
  op.accept({"approx", "full"});
  inst.immediate = rounding_mode(op);
  int sources = 2;
  if (inst.immediate != FE_TONEAREST) {
    inst.handler = op.type == "f32" ? rounded_handler<float>(op, sources) : rounded_handler<double>(op, sources);
  } else if (op.type == "f64") {
    if (nan || inst.saturate) return false;
    inst.handler = f64_handler(op, sources);
  } else if (op.is("fma") || op.is("mad")) {
    inst.handler = VARIANTS(float_ternary, fma_, flush, inst.saturate);
    sources = 3;
  } else if (!(inst.handler = f32_binary(op, flush, inst.saturate, nan))) {
    inst.handler = f32_unary(op, flush, inst.saturate);
    sources = 1;
  }
  if (!inst.handler || int(operands.size()) != sources + 1) return false;
  if (sources == 1) push_all(inst, operands, {cls, cls}, true);
  if (sources == 2) push_all(inst, operands, {cls, cls, cls}, true);
  if (sources == 3) push_all(inst, operands, {cls, cls, cls, cls}, true);
  return true;
}

// ---------------------------------------------------------------- f16, bf16, and pairs of them

namespace {

struct Half {
  static float to_float(u16 bits) { return half_to_float(bits); }
  static u16 from_float(float value) { return float_to_half(value); }
};
struct Bf16 {
  static float to_float(u16 bits) { return bf16_to_float(bits); }
  static u16 from_float(float value) { return float_to_bf16(value); }
};

template <class Format, class F>
u32 on_pair(F f, u32 a, u32 b, u32 c) {
  const auto one = [&](int shift) {
    return u32(Format::from_float(
               f(Format::to_float(a >> shift), Format::to_float(b >> shift), Format::to_float(c >> shift))))
           << shift;
  };
  return (one(0) & 0xffff) | one(16);
}

/// The lambda on fp32 values, of up to three sources (the last ones are ignored).
template <class Format, class F>
Handler half_handler(F, int sources, bool pair) {
  if (pair) {
    if (sources == 1) return unary<u32, u32>([](u32 a) { return on_pair<Format>(F{}, a, 0, 0); });
    if (sources == 2) return binary<u32, u32, u32>([](u32 a, u32 b) { return on_pair<Format>(F{}, a, b, 0); });
    return ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return on_pair<Format>(F{}, a, b, c); });
  }
  const auto one = [](u16 a, u16 b, u16 c) {
    return Format::from_float(F{}(Format::to_float(a), Format::to_float(b), Format::to_float(c)));
  };
  using One = decltype(one);
  if (sources == 1) return unary<u16, u16>([](u16 a) { return One{}(a, 0, 0); });
  if (sources == 2) return binary<u16, u16, u16>([](u16 a, u16 b) { return One{}(a, b, 0); });
  return ternary<u16, u16, u16, u16>([](u16 a, u16 b, u16 c) { return One{}(a, b, c); });
}

constexpr auto relu = [](float v) { return v > 0 ? v : 0.f; };
constexpr auto saturate = [](float v) { return v > 0 ? (v < 1 ? v : 1.f) : 0.f; };

template <class Format>
Handler half_arithmetic(const Opcode& op, bool pair, int& sources) {
  const bool nan = op.has("NaN"), is_relu = op.has("relu"), sat = op.has("sat");
  sources = 2;
  if (op.is("add"))
    return sat ? half_handler<Format>([](float a, float b, float) { return saturate(a + b); }, 2, pair)
               : half_handler<Format>([](float a, float b, float) { return a + b; }, 2, pair);
  if (op.is("sub"))
    return sat ? half_handler<Format>([](float a, float b, float) { return saturate(a - b); }, 2, pair)
               : half_handler<Format>([](float a, float b, float) { return a - b; }, 2, pair);
  if (op.is("mul"))
    return sat ? half_handler<Format>([](float a, float b, float) { return saturate(a * b); }, 2, pair)
               : half_handler<Format>([](float a, float b, float) { return a * b; }, 2, pair);
  if (op.is("max"))
    return nan ? half_handler<Format>([](float a, float b, float) { return max_nan(a, b); }, 2, pair)
               : half_handler<Format>([](float a, float b, float) { return max_number(a, b); }, 2, pair);
  if (op.is("min"))
    return nan ? half_handler<Format>([](float a, float b, float) { return min_nan(a, b); }, 2, pair)
               : half_handler<Format>([](float a, float b, float) { return min_number(a, b); }, 2, pair);
  sources = 3;
  if (op.is("fma")) {
    if (is_relu) return half_handler<Format>([](float a, float b, float c) { return relu(fmaf(a, b, c)); }, 3, pair);
    if (sat) return half_handler<Format>([](float a, float b, float c) { return saturate(fmaf(a, b, c)); }, 3, pair);
    return half_handler<Format>([](float a, float b, float c) { return fmaf(a, b, c); }, 3, pair);
  }
  sources = 1;
  if (op.is("ex2")) return half_handler<Format>([](float a, float, float) { return exp2f(a); }, 1, pair);
  if (op.is("tanh")) return half_handler<Format>([](float a, float, float) { return tanhf(a); }, 1, pair);
  return nullptr;
}

template <class Format, class F>
Handler half_compare(F) {
  return compare<u16>([](u16 a, u16 b) { return F{}(Format::to_float(a), Format::to_float(b)); });
}

/// setp on a pair: p for the low half, q for the high half.
template <class Format, class F>
Handler half_pair_compare(F) {
  return [](Warp& warp, const Instruction& inst) {
    u32 low = 0, high = 0;
    for (int l = 0; l < kWarpSize; l++) {
      const u32 a = lanes<u32>(warp, inst.operands[1])[l], b = lanes<u32>(warp, inst.operands[2])[l];
      low |= u32(F{}(Format::to_float(a), Format::to_float(b))) << l;
      high |= u32(F{}(Format::to_float(a >> 16), Format::to_float(b >> 16))) << l;
    }
    set_predicate(warp, inst.operands[0], low);
    if (inst.predicate_out >= 0) set_predicate(warp, inst.predicate_out, high);
  };
}

/// set.<cmp>.<type>.<half>x2: all ones, or 1.0, of each half.
template <class Format, class F>
Handler half_pair_set(F, bool as_float) {
  if (as_float)
    return binary<u32, u32, u32>([](u32 a, u32 b) {
      const u32 one = Format::from_float(1.f);
      return (F{}(Format::to_float(a), Format::to_float(b)) ? one : 0) |
             (F{}(Format::to_float(a >> 16), Format::to_float(b >> 16)) ? one << 16 : 0);
    });
  return binary<u32, u32, u32>([](u32 a, u32 b) {
    return (F{}(Format::to_float(a), Format::to_float(b)) ? 0xffffu : 0) |
           (F{}(Format::to_float(a >> 16), Format::to_float(b >> 16)) ? 0xffff0000u : 0);
  });
}

enum class HalfCompare { Scalar, Pair, SetMask, SetFloat };

template <class Format, class F>
Handler half_compare_kind(F f, HalfCompare kind) {
  switch (kind) {
    case HalfCompare::Scalar: return half_compare<Format>(f);
    case HalfCompare::Pair: return half_pair_compare<Format>(f);
    case HalfCompare::SetMask: return half_pair_set<Format>(f, false);
    default: return half_pair_set<Format>(f, true);
  }
}

template <class Format>
Handler half_compare_handler(const std::string& name, HalfCompare kind) {
  if (name == "eq") return half_compare_kind<Format>([](float a, float b) { return a == b; }, kind);
  if (name == "ne") return half_compare_kind<Format>([](float a, float b) { return a < b || a > b; }, kind);
  if (name == "lt") return half_compare_kind<Format>([](float a, float b) { return a < b; }, kind);
  if (name == "le") return half_compare_kind<Format>([](float a, float b) { return a <= b; }, kind);
  if (name == "gt") return half_compare_kind<Format>([](float a, float b) { return a > b; }, kind);
  if (name == "ge") return half_compare_kind<Format>([](float a, float b) { return a >= b; }, kind);
  if (name == "equ") return half_compare_kind<Format>([](float a, float b) { return !(a < b || a > b); }, kind);
  if (name == "neu") return half_compare_kind<Format>([](float a, float b) { return !(a == b); }, kind);
  if (name == "nan") return half_compare_kind<Format>([](float a, float b) { return a != a || b != b; }, kind);
  return nullptr;
}

}  // namespace

bool Decoder::decode_half(Instruction& inst, const Opcode& op, const Operands& operands) {
  const bool is_half = op.type == "f16" || op.type == "f16x2", is_bf16 = op.type == "bf16" || op.type == "bf16x2";
  if (!is_half && !is_bf16) return false;
  inst.counter = CounterClass::Float;
  const bool pair = op.cls == RegClass::B32;
  op.accept({"ftz", "rn", "approx"});  // denormals of f16 are kept: flushing is a loss of precision only
  if (op.is("setp") || op.is("set")) {
    const HalfCompare kind = op.is("setp") ? (pair ? HalfCompare::Pair : HalfCompare::Scalar)
                             : op.part(op.parts.size() - 2)[0] == 'u' || op.parts[op.parts.size() - 2][0] == 's'
                                 ? HalfCompare::SetMask
                                 : HalfCompare::SetFloat;
    if (op.is("set") && !pair) return false;
    const std::string name = op.part(1);
    inst.handler = is_half ? half_compare_handler<Half>(name, kind) : half_compare_handler<Bf16>(name, kind);
    const auto [p, q] = split_at_bar(operands.at(0));
    inst.operands.push_back(operand(p, op.is("setp") ? RegClass::Pred : RegClass::B32).id);
    if (!q.empty() && q != "_") inst.predicate_out = operand(q, RegClass::Pred).id;
    inst.classes.push_back(RegClass::Pred);
    push(inst, operands.at(1), op.cls);
    push(inst, operands.at(2), op.cls);
    return operands.size() == 3;
  }
  if (op.is("neg") || op.is("abs")) {
    push_all(inst, operands, {op.cls, op.cls});
    if (op.is("neg"))
      inst.handler = pair ? unary<u32, u32>([](u32 a) { return a ^ 0x80008000u; })
                          : unary<u16, u16>([](u16 a) { return a ^ 0x8000; });
    else
      inst.handler = pair ? unary<u32, u32>([](u32 a) { return a & 0x7fff7fffu; })
                          : unary<u16, u16>([](u16 a) { return a & 0x7fff; });
    return true;
  }
  int sources = 0;
  inst.handler = is_half ? half_arithmetic<Half>(op, pair, sources) : half_arithmetic<Bf16>(op, pair, sources);
  if (!inst.handler || int(operands.size()) != sources + 1) return false;
  for (const std::string& text : operands) push(inst, text, op.cls);
  return true;
}

}  // namespace ptxemu
