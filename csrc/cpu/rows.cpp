#include "rows.h"

#include <cmath>
#include <cstring>

// One build serves every x86-64 processor: the loader picks a clone when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CHUNKATTN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CHUNKATTN_CLONES
#endif

namespace chunkattn {
namespace {

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

CHUNKATTN_CLONES void bf16_to_f32(const uint16_t* row, float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = float_of(static_cast<uint32_t>(row[i]) << 16);
}

CHUNKATTN_CLONES void f32_to_bf16(const float* values, uint16_t* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(values[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    row[i] = static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded);
  }
}

CHUNKATTN_CLONES void f16_to_f32(const _Float16* row, float* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(row[i]);
}

CHUNKATTN_CLONES void f32_to_f16(const float* values, _Float16* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<_Float16>(values[i]);
}

// A small float with kMantissa mantissa bits and exponent bias kBias. Below the least normal value the sum with
// 2^(23 - kMantissa - kBias + 1) leaves the rounded denormal in the low bits.
template <int kMantissa, int kBias>
inline uint8_t encode_fp8(float x, float largest) {
  const uint32_t sign = (bits_of(x) >> 24) & 0x80, magnitude_bits = bits_of(x) & 0x7fffffff;
  float magnitude = float_of(magnitude_bits);
  magnitude = magnitude < largest ? magnitude : largest;
  const uint32_t bits = bits_of(magnitude);
  constexpr int kShift = 23 - kMantissa;
  const uint32_t normal = ((bits + ((1u << (kShift - 1)) - 1) + ((bits >> kShift) & 1)) >> kShift) -
                          (static_cast<uint32_t>(127 - kBias) << kMantissa);
  const float magic = float_of(static_cast<uint32_t>(127 + kShift + 1 - kBias) << 23);
  const uint32_t denormal = bits_of(magnitude + magic) - bits_of(magic);
  const uint32_t least_normal = static_cast<uint32_t>(127 - kBias + 1) << 23;
  const uint32_t code = bits < least_normal ? denormal : normal;
  return static_cast<uint8_t>(sign | (magnitude_bits > 0x7f800000 ? 0x7f : code));
}

CHUNKATTN_CLONES void f32_to_e4m3(const float* values, uint8_t* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] = encode_fp8<3, 7>(values[i], 448.0f);
}

CHUNKATTN_CLONES void f32_to_e5m2(const float* values, uint8_t* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] = encode_fp8<2, 15>(values[i], 57344.0f);
}

CHUNKATTN_CLONES void f32_to_i8(const float* values, int8_t* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float x = values[i] == values[i] ? values[i] : 0.0f;
    x = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
    // 1.5 * 2^23 leaves the integer, rounded to nearest even, in the low bits.
    row[i] = static_cast<int8_t>(bits_of(x + 12582912.0f) - bits_of(12582912.0f));
  }
}

CHUNKATTN_CLONES void rotate_halves(float* values, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = values[i], second = values[half + i];
    values[i] = first * cos[i] - second * sin[i];
    values[half + i] = second * cos[i] + first * sin[i];
  }
}

CHUNKATTN_CLONES void rotate_pairs(float* values, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = values[2 * i], second = values[2 * i + 1];
    values[2 * i] = first * cos[i] - second * sin[i];
    values[2 * i + 1] = second * cos[i] + first * sin[i];
  }
}

}  // namespace

void load_row(DType dtype, const void* row, float* values, int64_t n) {
  switch (dtype) {
    case DType::kBF16: return bf16_to_f32(static_cast<const uint16_t*>(row), values, n);
    case DType::kF16: return f16_to_f32(static_cast<const _Float16*>(row), values, n);
    default: std::memcpy(values, row, n * sizeof(float));
  }
}

void store_row(DType dtype, const float* values, void* row, int64_t n) {
  switch (dtype) {
    case DType::kF32: std::memcpy(row, values, n * sizeof(float)); return;
    case DType::kF16: return f32_to_f16(values, static_cast<_Float16*>(row), n);
    case DType::kBF16: return f32_to_bf16(values, static_cast<uint16_t*>(row), n);
    case DType::kE4M3: return f32_to_e4m3(values, static_cast<uint8_t*>(row), n);
    case DType::kE5M2: return f32_to_e5m2(values, static_cast<uint8_t*>(row), n);
    case DType::kI8: return f32_to_i8(values, static_cast<int8_t*>(row), n);
  }
}

float largest_value(DType dtype) { return dtype == DType::kE4M3 ? 448.0f : dtype == DType::kE5M2 ? 57344.0f : 127.0f; }

void rotate_row(float* values, const float* cos, const float* sin, int64_t half, bool interleaved) {
  if (interleaved)
    rotate_pairs(values, cos, sin, half);
  else
    rotate_halves(values, cos, sin, half);
}

}  // namespace chunkattn
