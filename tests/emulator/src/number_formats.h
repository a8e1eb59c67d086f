// Conversions between fp32 and the narrow formats of tensor cores: f16, bf16, tf32, e4m3, e5m2.
#pragma once
#include <immintrin.h>

#include <cmath>

#include "types.h"

namespace ptxemu {

inline u32 float_bits(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}

inline float bits_float(u32 bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline float bf16_to_float(u16 bits) { return bits_float(u32(bits) << 16); }

/// Round to nearest even; NaN becomes the canonical NaN, as on hardware.
inline u16 float_to_bf16(float value) {
  u32 bits = float_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  bits += 0x7fff + ((bits >> 16) & 1);
  return bits >> 16;
}

inline u16 float_to_bf16_toward_zero(float value) {
  const u32 bits = float_bits(value);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : bits >> 16;
}

inline float half_to_float(u16 bits) { return _cvtsh_ss(bits); }

inline u16 float_to_half(float value) {
  return std::isnan(value) ? 0x7fff : _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}

inline u16 float_to_half_toward_zero(float value) {
  return std::isnan(value) ? 0x7fff : _cvtss_sh(value, _MM_FROUND_TO_ZERO);
}

/// What a tensor core reads of a 32-bit register as tf32: the low 13 bits are ignored.
inline float tf32_to_float(u32 bits) { return bits_float(bits & 0xffffe000); }

/// cvt.rna.tf32.f32: nearest, ties away from zero.
inline u32 float_to_tf32_away(float value) {
  const u32 bits = float_bits(value);
  if ((bits & 0x7f800000) == 0x7f800000) return bits;
  return (bits + 0x1000) & 0xffffe000;
}

/// cvt.rn.tf32.f32: nearest even.
inline u32 float_to_tf32_even(float value) {
  const u32 bits = float_bits(value);
  if ((bits & 0x7f800000) == 0x7f800000) return bits;
  return (bits + 0xfff + ((bits >> 13) & 1)) & 0xffffe000;
}

/// An 8-bit float: kMantissa bits of mantissa, bias kBias. e4m3 has no infinity, e5m2 is IEEE-like.
template <int kMantissa, int kBias, bool kHasInfinity>
struct Float8 {
  static constexpr int kMaxCode = kHasInfinity ? 0x7b : 0x7e;
  static constexpr int kNan = 0x7f;

  static float to_float(u8 code) {
    const int exponent = (code & 0x7f) >> kMantissa, mantissa = code & ((1 << kMantissa) - 1);
    float magnitude;
    if (kHasInfinity && exponent == (0x7f >> kMantissa))
      magnitude = mantissa ? NAN : INFINITY;
    else if (!kHasInfinity && (code & 0x7f) == kNan)
      magnitude = NAN;
    else if (exponent == 0)
      magnitude = std::ldexp(float(mantissa), 1 - kBias - kMantissa);
    else
      magnitude = std::ldexp(float(mantissa + (1 << kMantissa)), exponent - kBias - kMantissa);
    return code & 0x80 ? -magnitude : magnitude;
  }

  /// Nearest even, saturating to the largest finite value (PTX .satfinite); NaN stays NaN.
  static u8 from_float(float value) {
    const u8 sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) return kNan;
    const float magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    int exponent;
    std::frexp(magnitude, &exponent);
    exponent = std::max(exponent - 1, 1 - kBias);  // subnormals share the smallest exponent
    const float scaled = magnitude <= 65536.f * 65536.f ? std::ldexp(magnitude, kMantissa - exponent) : 1e9f;
    const int rounded = int(std::nearbyint(std::min(scaled, 1e9f)));  // mantissa with the hidden bit
    const int code = ((exponent + kBias - 1) << kMantissa) + rounded;
    return sign | u8(rounded > (2 << kMantissa) || code > kMaxCode ? kMaxCode : code);
  }
};
using E4m3 = Float8<3, 7, false>;
using E5m2 = Float8<2, 15, true>;

/// Table for the hot loops of mma and wgmma.
template <class Format>
inline const float* float8_table() {
  static const auto* table = [] {
    auto* values = new float[256];
    for (int code = 0; code < 256; code++) values[code] = Format::to_float(u8(code));
    return values;
  }();
  return table;
}

inline float flush_denormal(float value) {
  return std::fabs(value) < 1.17549435e-38f ? std::copysign(0.f, value) : value;
}

}  // namespace ptxemu
