// Conversion of rows of head_dim elements between the stored dtypes and the two compute types.
//
// A row in a compute type is a row of 32-bit "units": one float, or a pair of bf16.
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

// Compute type float: one element a unit.
struct ComputeF32 {
  static constexpr int kPerUnit = 1;
  static constexpr DType kNative = DType::kF32;
#ifndef FKEYS
#define FKEYS 64
#endif
  static constexpr int kBlockKeys = FKEYS;  // K, V and scores of a block beside the tile's queries in L2 and L1
  static constexpr int kExp2Degree = 6;

  template <DType kDType>
  CHUNKATTN_INLINE void row_from(const void* source, uint32_t* target, int64_t n) {
    floats_from<kDType>(source, reinterpret_cast<float*>(target), n);
  }
  CHUNKATTN_INLINE Vf dot(Vf a, Vf b, Vf sum) { return madd(a, b, sum); }

  // Decode: columns [first, first + kCols * kLanes) of one row of V.
  template <int kCols>
  CHUNKATTN_INLINE void value_columns(const char* const* rows, int64_t first, int64_t units, Vf* columns) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c)
      columns[c] = load_first(rows[0] + (first + c * kLanes) * 4, units - first - c * kLanes);
  }
  CHUNKATTN_INLINE void store_weights(float* weights, int64_t i, Vf a, Vf b, float*) {
    store(weights + i, a);
    store(weights + i + kLanes, b);
  }
  CHUNKATTN_INLINE void in_order(const float* source, float* target, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) store(target + i, load(source + i));
  }
};

#if defined(__AVX512BF16__)

// The two bytes of the bf16 that equals an fp8 number, by its 7 bits of magnitude.
struct Fp8Table {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];

  explicit constexpr Fp8Table(bool e4m3) : high(), low() {
    const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
    for (int magnitude = 0; magnitude < 128; ++magnitude) {
      int exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1 << mantissa_bits) - 1), bits = 0;
      if (e4m3 ? magnitude == 127 : exponent == 31) {
        bits = !e4m3 && mantissa == 0 ? 0x7f80 : 0x7fc0;  // e4m3 has no infinity
      } else if (magnitude != 0) {
        if (exponent == 0) {  // subnormal in fp8, normal in bf16
          exponent = 1;
          while (mantissa >> mantissa_bits == 0) {
            mantissa <<= 1;
            --exponent;
          }
          mantissa &= (1 << mantissa_bits) - 1;
        }
        bits = (exponent + 127 - bias) << 7 | mantissa << (7 - mantissa_bits);
      }
      high[magnitude] = static_cast<uint8_t>(bits >> 8);
      low[magnitude] = static_cast<uint8_t>(bits & 0xff);
    }
  }
};

// Compute type bf16, accumulated in float: two elements a unit. Exact for bf16, fp8 and int8 storage.
struct ComputeBF16 {
  static constexpr int kPerUnit = 2;
  static constexpr DType kNative = DType::kBF16;
  static constexpr int kBlockKeys = 128;
  static constexpr int kExp2Degree = 5;

  template <DType kDType>
  CHUNKATTN_INLINE void row_from(const void* source, uint32_t* target, int64_t n) {
    const char* p = static_cast<const char*>(source);
    uint16_t* out = reinterpret_cast<uint16_t*>(target);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
      __m512i low, high;
      load64<kDType>(p + i * bytes_of(kDType), ~0ull, &low, &high);
      _mm512_storeu_si512(out + i, low);
      _mm512_storeu_si512(out + i + 32, high);
    }
    if (i == n) return;
    const uint64_t live = (1ull << (n - i)) - 1;
    __m512i low, high;
    load64<kDType>(p + i * bytes_of(kDType), live, &low, &high);
    _mm512_mask_storeu_epi16(out + i, static_cast<__mmask32>(live), low);
    _mm512_mask_storeu_epi16(out + i + 32, static_cast<__mmask32>(live >> 32), high);
  }
  // Units of two keys from the weights of either, rows in the lanes.
  CHUNKATTN_INLINE Vf pair(Vf even, Vf odd) {
    const __m512i rows = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(interleave, rows));
  }
  CHUNKATTN_INLINE Vf even(Vf units) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(units), 16)); }
  CHUNKATTN_INLINE Vf odd(Vf units) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(units), _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
  }
  CHUNKATTN_INLINE Vf dot(Vf a, Vf b, Vf sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  // Decode: units of two rows of V. A vector of 32 columns becomes two of 16 pairs; each 128-bit lane of the first
  // holds columns 0-3 of that lane's eight, of the second 4-7.
  template <int kCols>
  CHUNKATTN_INLINE void value_columns(const char* const* rows, int64_t first, int64_t units, Vf* columns) {
#pragma GCC unroll 4
    for (int c = 0; c < kCols / 2; ++c) {
      const int64_t unit = first + c * kLanes;
      const __m512i even = _mm512_castps_si512(load_first(rows[0] + unit * 4, units - unit));
      const __m512i odd = _mm512_castps_si512(load_first(rows[1] + unit * 4, units - unit));
      columns[2 * c] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(even, odd));
      columns[2 * c + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(even, odd));
    }
  }
  CHUNKATTN_INLINE void store_weights(float* weights, int64_t i, Vf a, Vf b, float* low) {
    const __m512i high = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    _mm512_storeu_si512(weights + i / 2, high);
    if (!low) return;
    const Vf high_a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16));
    const Vf high_b =
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16));
    _mm512_storeu_si512(low + i / 2, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(sub(b, high_b), sub(a, high_a))));
  }
  CHUNKATTN_INLINE void in_order(const float* source, float* target, int64_t n) {
    for (int64_t i = 0; i < n; i += 32)
      for (int64_t j = 0; j < 4; ++j) {
        memcpy(target + i + 8 * j, source + i + 4 * j, 16);
        memcpy(target + i + 8 * j + 4, source + i + 16 + 4 * j, 16);
      }
  }

 private:
  // Up to 64 stored elements as bf16, exact.
  template <DType kDType>
  CHUNKATTN_INLINE void load64(const void* p, uint64_t live, __m512i* low, __m512i* high) {
    if constexpr (kDType == DType::kBF16) {
      *low = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(live), p);
      *high = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(live >> 32), static_cast<const uint16_t*>(p) + 32);
    } else if constexpr (kDType == DType::kI8) {
      const __m512i bytes = _mm512_maskz_loadu_epi8(live, p);
      *low = pack(_mm512_castsi512_si128(bytes), _mm512_extracti32x4_epi32(bytes, 1));
      *high = pack(_mm512_extracti32x4_epi32(bytes, 2), _mm512_extracti32x4_epi32(bytes, 3));
    } else {
      // Both bytes of a bf16 come from tables by the 7 bits of magnitude, and the sign is put back. Eighths of the
      // vector are dealt out first, so that the unpacked halves come out in order.
      static constexpr Fp8Table kTable(kDType == DType::kE4M3);
      const __m512i deal = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
      const __m512i x = _mm512_permutexvar_epi64(deal, _mm512_maskz_loadu_epi8(live, p));
      const __m512i top =
          _mm512_permutex2var_epi8(_mm512_load_si512(kTable.high), x, _mm512_load_si512(kTable.high + 64));
      const __m512i bottom =
          _mm512_permutex2var_epi8(_mm512_load_si512(kTable.low), x, _mm512_load_si512(kTable.low + 64));
      const __m512i with_sign =
          _mm512_ternarylogic_epi32(_mm512_set1_epi8(INT8_MIN), x, top, 0xea);  // (sign & x) | top
      *low = _mm512_unpacklo_epi8(bottom, with_sign);
      *high = _mm512_unpackhi_epi8(bottom, with_sign);
    }
  }
  CHUNKATTN_INLINE __m512i pack(__m128i first, __m128i second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(second)),
                                                         _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(first))));
  }
};

#endif

// Rounding weights to bf16 costs little where it is averaged over many columns and the largest weight is exactly 1.
// Where columns are few or scales per token multiply the weights, the rounded-off part is multiplied as well.
template <class Compute>
CHUNKATTN_INLINE bool wants_low_weights(const AttentionParams& p) {
  return Compute::kPerUnit == 2 && (p.head_dim_v < 64 || p.v.scale.mode == ScaleMode::kPerTokenHead);
}

// Converts `count` rows of n elements, at base + offsets[i] bytes, into rows of units one behind the other. Many rows a
// call, so that the constants of a conversion are loaded once.
using RowConverter = void (*)(const char* base, const int64_t* offsets, int64_t count, uint32_t* target, int64_t n);

template <class Compute, DType kDType>
static void convert_rows(const char* base, const int64_t* offsets, int64_t count, uint32_t* target, int64_t n) {
  for (int64_t i = 0; i < count; ++i)
    Compute::template row_from<kDType>(base + offsets[i], target + i * (n / Compute::kPerUnit), n);
}

constexpr int64_t kNoOffset = 0;

// nullptr where the compute type cannot hold the dtype exactly; the dispatch never asks for those.
template <class Compute>
static RowConverter row_converter(DType dtype) {
  if constexpr (Compute::kPerUnit == 1) {
    if (dtype == DType::kF32) return convert_rows<Compute, DType::kF32>;
    if (dtype == DType::kF16) return convert_rows<Compute, DType::kF16>;
  }
  if (dtype == DType::kBF16) return convert_rows<Compute, DType::kBF16>;
  if (dtype == DType::kE4M3) return convert_rows<Compute, DType::kE4M3>;
  if (dtype == DType::kE5M2) return convert_rows<Compute, DType::kE5M2>;
  if (dtype == DType::kI8) return convert_rows<Compute, DType::kI8>;
  return nullptr;
}

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
