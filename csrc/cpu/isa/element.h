// Single numbers and rows of floats: loaded from the stored dtypes, stored in the dtype of the output, transposed.
#pragma once
#include <cstring>

#include "chunkattn/core/params.h"
#include "simd.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

CHUNKATTN_INLINE float float_from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
CHUNKATTN_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
CHUNKATTN_INLINE int64_t bytes_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kF16 || dtype == DType::kBF16 ? 2 : 1;
}

CHUNKATTN_INLINE uint16_t bf16_from_float(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#if defined(__AVX2__)

template <DType kDType>
CHUNKATTN_INLINE __m256 load8(const void* p) {
  if constexpr (kDType == DType::kF32) return _mm256_loadu_ps(static_cast<const float*>(p));
  if constexpr (kDType == DType::kF16) return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  if constexpr (kDType == DType::kBF16)
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
  if constexpr (kDType == DType::kI8)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
  // An e5m2 number is the upper byte of an fp16 one.
  if constexpr (kDType == DType::kE5M2)
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p))), 8));
  if constexpr (kDType == DType::kE4M3) {
    // Sign, exponent and mantissa moved to their places in fp16, whose exponent bias is greater by 8.
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
    const __m128i magnitude = _mm_set1_epi16(0x3f80);
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, magnitude), magnitude);
    const __m128i fixed = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(fixed), _mm256_set1_ps(256.0f));
  }
}

template <DType kDType>
CHUNKATTN_INLINE void floats_from(const void* source, float* target, int64_t n) {
  const char* p = static_cast<const char*>(source);
  for (int64_t i = 0; i < n; i += 8) _mm256_storeu_ps(target + i, load8<kDType>(p + i * bytes_of(kDType)));
}

// target[i] = source[i] * scale, rounded to nearest even.
CHUNKATTN_INLINE void store_row(const float* source, float scale, void* target, DType dtype, int64_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  if (dtype == DType::kF32) {
    for (int64_t i = 0; i < n; i += 8)
      _mm256_storeu_ps(static_cast<float*>(target) + i, _mm256_mul_ps(_mm256_loadu_ps(source + i), factor));
  } else if (dtype == DType::kF16) {
    for (int64_t i = 0; i < n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(target) + i),
                       _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(source + i), factor), _MM_FROUND_TO_NEAREST_INT));
  } else {
    for (int64_t i = 0; i < n; i += 8) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(source + i), factor);
#if defined(__AVX512BF16__)
      const __m128i packed = reinterpret_cast<__m128i>(_mm256_cvtneps_pbh(x));
#else
      const __m256i bits = _mm256_castps_si256(x);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
      const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
      const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
      const __m256i top = _mm256_srli_epi32(
          _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan)), 16);
      const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
#endif
      _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(target) + i), packed);
    }
  }
}

#else

CHUNKATTN_INLINE float float_from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // Read as a float with the exponent bias of fp16, then moved by the difference of the biases; exact.
  return float_from_bits(sign | magnitude << 13) * 0x1p112f;
}
CHUNKATTN_INLINE uint16_t f16_from_float(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
  if (magnitude < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded by an addition that drops the rest
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

template <DType kDType>
CHUNKATTN_INLINE float element(const void* p, int64_t i) {
  if constexpr (kDType == DType::kF32) return static_cast<const float*>(p)[i];
  if constexpr (kDType == DType::kF16) return float_from_f16(static_cast<const uint16_t*>(p)[i]);
  if constexpr (kDType == DType::kBF16)
    return float_from_bits(static_cast<uint32_t>(static_cast<const uint16_t*>(p)[i]) << 16);
  if constexpr (kDType == DType::kI8) return static_cast<float>(static_cast<const int8_t*>(p)[i]);
  const uint32_t byte = static_cast<const uint8_t*>(p)[i];
  if constexpr (kDType == DType::kE5M2) return float_from_f16(static_cast<uint16_t>(byte << 8));
  if ((byte & 0x7f) == 0x7f) return __builtin_nanf("");
  return float_from_f16(static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7)) * 256.0f;  // e4m3
}

template <DType kDType>
CHUNKATTN_INLINE void floats_from(const void* source, float* target, int64_t n) {
  for (int64_t i = 0; i < n; ++i) target[i] = element<kDType>(source, i);
}

// target[i] = source[i] * scale, rounded to nearest even.
CHUNKATTN_INLINE void store_row(const float* source, float scale, void* target, DType dtype, int64_t n) {
  if (dtype == DType::kF32) {
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(target)[i] = source[i] * scale;
  } else if (dtype == DType::kF16) {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(target)[i] = f16_from_float(source[i] * scale);
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(target)[i] = bf16_from_float(source[i] * scale);
  }
}

#endif

// Four rows of four 32-bit units each become columns: target t holds unit t of the four sources.
CHUNKATTN_INLINE void transpose4(const void* const source[4], void* const target[4]) {
#if defined(__SSE2__)
  __m128 a = _mm_loadu_ps(static_cast<const float*>(source[0])), b = _mm_loadu_ps(static_cast<const float*>(source[1]));
  __m128 c = _mm_loadu_ps(static_cast<const float*>(source[2])), d = _mm_loadu_ps(static_cast<const float*>(source[3]));
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(static_cast<float*>(target[0]), a);
  _mm_storeu_ps(static_cast<float*>(target[1]), b);
  _mm_storeu_ps(static_cast<float*>(target[2]), c);
  _mm_storeu_ps(static_cast<float*>(target[3]), d);
#else
  uint32_t rows[4][4];
  for (int i = 0; i < 4; ++i) memcpy(rows[i], source[i], 16);
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 4; ++i) memcpy(static_cast<char*>(target[t]) + 4 * i, &rows[i][t], 4);
#endif
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
