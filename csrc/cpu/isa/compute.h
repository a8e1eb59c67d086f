// The two types that products are computed in, and rows of them made from the stored dtypes.
//
// A row in a compute type is a row of 32-bit "units": one float, or a pair of bf16.
#pragma once
#include "element.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// Compute type float: one element a unit.
struct ComputeF32 {
  static constexpr int kPerUnit = 1;
  static constexpr DType kNative = DType::kF32;
  static constexpr int kBlockKeys = 128;  // with 64, adding a block's sums to the results took 1 % of the time
  static constexpr int kExp2Degree = 6;

  template <DType kDType>
  CHUNKATTN_INLINE void row_from(const void* source, uint32_t* target, int64_t n) {
    floats_from<kDType>(source, reinterpret_cast<float*>(target), n);
  }
  CHUNKATTN_INLINE Vf dot(Vf a, Vf b, Vf sum) { return madd(a, b, sum); }

  // Decode: rows of bf16 are read where they are, where a vector may be loaded in part.
  static DType reads_as([[maybe_unused]] DType stored, int64_t) {
#if defined(__AVX512F__)
    if (stored == DType::kBF16) return stored;
#endif
    return kNative;
  }
  template <DType kDType>
  static constexpr int kKeyVectors = kDType == kNative ? 1 : 2;  // that a load brings
  template <DType kDType>
  static constexpr int kColumnVectors = kKeyVectors<kDType>;  // that belong together
  // A vector of units of a row of K; of bf16 the even and the odd ones of two.
  template <DType kDType>
  CHUNKATTN_INLINE void key_units(const char* row, int64_t first, int64_t units, Vf* vectors) {
#if defined(__AVX512F__)
    if constexpr (kDType != kNative) {
      const Vf words = load_first(row + first * 2, (units - first) / 2);
      vectors[0] = first_of_pairs(words), vectors[1] = second_of_pairs(words);
      return;
    }
#endif
    vectors[0] = load_first(row + first * 4, units - first);
  }
  // Columns [first, first + kCols * kLanes) of one row of V, in the same order.
  template <DType kDType, int kCols>
  CHUNKATTN_INLINE void value_columns(const char* const* rows, int64_t first, int64_t units, Vf* columns) {
    constexpr int kVectors = kKeyVectors<kDType>;
#pragma GCC unroll 8
    for (int c = 0; c < kCols; c += kVectors) key_units<kDType>(rows[0], first + c * kLanes, units, columns + c);
  }
  // Puts a row of queries in the order of key_units(), and a row of results out of that of value_columns().
  template <DType kDType>
  CHUNKATTN_INLINE void to_key_order(uint32_t* row, int64_t n) {
    if constexpr (kDType != kNative)
      for (int64_t i = 0; i < n; i += 2 * kLanes) {
        uint32_t pairs[2 * kLanes];
        memcpy(pairs, row + i, sizeof pairs);
        for (int64_t j = 0; j < kLanes; ++j) row[i + j] = pairs[2 * j], row[i + kLanes + j] = pairs[2 * j + 1];
      }
  }
  template <DType kDType>
  CHUNKATTN_INLINE void in_order(const float* source, float* target, int64_t n) {
    if constexpr (kDType != kNative) {
      for (int64_t i = 0; i < n; i += 2 * kLanes)
        for (int64_t j = 0; j < kLanes; ++j)
          target[i + 2 * j] = source[i + j], target[i + 2 * j + 1] = source[i + kLanes + j];
    } else {
      for (int64_t i = 0; i < n; i += kLanes) store(target + i, load(source + i));
    }
  }
  CHUNKATTN_INLINE void store_weights(float* weights, int64_t i, Vf a, Vf b, float*) {
    store(weights + i, a);
    store(weights + i + kLanes, b);
  }

  // Prefill: one unit of results, rows in the lanes, from its columns `pitch` apart.
  CHUNKATTN_INLINE Vf result_unit(const float* columns, int64_t, Vf factor) { return mul(load(columns), factor); }
};

#if defined(__AVX512BF16__)

// The two bytes of the bf16 that equals a one-byte number, by the 7 bits of its magnitude.
struct ByteTable {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];

  explicit constexpr ByteTable(DType dtype) : high(), low() {
    // The magnitude of an int8 is the mantissa of a subnormal whose unit is 1.
    const bool e4m3 = dtype == DType::kE4M3, integer = dtype == DType::kI8;
    const int mantissa_bits = e4m3 ? 3 : integer ? 7 : 2, bias = e4m3 ? 7 : integer ? 1 - 7 : 15;
    for (int magnitude = 0; magnitude < 128; ++magnitude) {
      int exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1 << mantissa_bits) - 1), bits = 0;
      if (e4m3 ? magnitude == 127 : exponent == 31) {
        bits = !e4m3 && mantissa == 0 ? 0x7f80 : 0x7fc0;  // e4m3 has no infinity
      } else if (magnitude != 0) {
        if (exponent == 0) {  // subnormal there, normal in bf16
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
  CHUNKATTN_INLINE Vf even(Vf units) { return first_of_pairs(units); }
  CHUNKATTN_INLINE Vf odd(Vf units) { return second_of_pairs(units); }
  CHUNKATTN_INLINE Vf dot(Vf a, Vf b, Vf sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  // Decode: rows of bytes are read where they are, and widened once for every four query rows; for more than kMostRows
  // they are converted before.
  static DType reads_as(DType stored, int64_t num_rows) {
    constexpr int64_t kMostRows = 8;
    return bytes_of(stored) == 1 && num_rows <= kMostRows ? stored : kNative;
  }
  template <DType kDType>
  static constexpr int kKeyVectors = kDType == kNative ? 1 : 2;  // that a load brings
  template <DType kDType>
  static constexpr int kColumnVectors = 2 * kKeyVectors<kDType>;  // that belong together
  // A vector of units of a row of K, two of a row of bytes.
  template <DType kDType>
  CHUNKATTN_INLINE void key_units(const char* row, int64_t first, int64_t units, Vf* vectors) {
    if constexpr (kDType == kNative) {
      vectors[0] = load_first(row + first * 4, units - first);
    } else {
      __m512i low, high;
      load64<kDType>(row + first * 2, first_bits(2 * (units - first)), &low, &high);
      vectors[0] = _mm512_castsi512_ps(low), vectors[1] = _mm512_castsi512_ps(high);
    }
  }
  // Units of two rows of V. A vector of 32 columns becomes two of 16 pairs; each 128-bit lane of the first
  // holds columns 0-3 of that lane's eight, of the second 4-7. Of bytes 64 columns become four, whose lanes have
  // columns 0-3, 4-7, 8-11 and 12-15 of sixteen.
  template <DType kDType, int kCols>
  CHUNKATTN_INLINE void value_columns(const char* const* rows, int64_t first, int64_t units, Vf* columns) {
    if constexpr (kDType != kNative) {
      static_assert(kCols == 4);
      const uint64_t live = first_bits(2 * (units - first));
      const __m512i even = _mm512_maskz_loadu_epi8(live, rows[0] + first * 2);
      const __m512i odd = _mm512_maskz_loadu_epi8(live, rows[1] + first * 2);
      __m512i pairs[4];
      widen<kDType>(_mm512_unpacklo_epi8(even, odd), pairs, pairs + 1);
      widen<kDType>(_mm512_unpackhi_epi8(even, odd), pairs + 2, pairs + 3);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) columns[c] = _mm512_castsi512_ps(pairs[c]);
      return;
    }
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
  template <DType kDType>
  CHUNKATTN_INLINE void to_key_order(uint32_t*, int64_t) {}
  template <DType kDType>
  CHUNKATTN_INLINE void in_order(const float* source, float* target, int64_t n) {
    constexpr int64_t kVectors = kColumnVectors<kDType>;
    for (int64_t i = 0; i < n; i += kVectors * kLanes)
      for (int64_t j = 0; j < 4; ++j)
        for (int64_t c = 0; c < kVectors; ++c)
          memcpy(target + i + 4 * (kVectors * j + c), source + i + kLanes * c + 4 * j, 16);
  }

  CHUNKATTN_INLINE Vf result_unit(const float* columns, int64_t pitch, Vf factor) {
    return pair(mul(load(columns), factor), mul(load(columns + pitch), factor));
  }

 private:
  static constexpr int8_t kHighOf128 = 0x43;  // bf16 0x4300; its low byte is that of 0

  // Up to 64 stored elements as bf16, exact.
  template <DType kDType>
  CHUNKATTN_INLINE void load64(const void* p, uint64_t live, __m512i* low, __m512i* high) {
    if constexpr (kDType == DType::kBF16) {
      *low = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(live), p);
      *high = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(live >> 32), static_cast<const uint16_t*>(p) + 32);
    } else {
      // Eighths of the vector are dealt out, so that the halves come out in order.
      const __m512i deal = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
      widen<kDType>(_mm512_permutexvar_epi64(deal, _mm512_maskz_loadu_epi8(live, p)), low, high);
    }
  }
  // 64 bytes as bf16, exact: of every sixteen eight in `low` and eight in `high`. Both bytes of a bf16 come from tables
  // by the 7 bits of magnitude, and the sign is put back.
  template <DType kDType>
  CHUNKATTN_INLINE void widen(__m512i x, __m512i* low, __m512i* high) {
    static constexpr ByteTable kTable(kDType);
    const __m512i magnitude = kDType == DType::kI8 ? _mm512_abs_epi8(x) : x;
    __m512i top =
        _mm512_permutex2var_epi8(_mm512_load_si512(kTable.high), magnitude, _mm512_load_si512(kTable.high + 64));
    const __m512i bottom =
        _mm512_permutex2var_epi8(_mm512_load_si512(kTable.low), magnitude, _mm512_load_si512(kTable.low + 64));
    if (kDType == DType::kI8)  // 128 has an eighth bit of magnitude
      top = _mm512_mask_mov_epi8(top, _mm512_movepi8_mask(magnitude), _mm512_set1_epi8(kHighOf128));
    const __m512i with_sign = _mm512_ternarylogic_epi32(_mm512_set1_epi8(INT8_MIN), x, top, 0xea);  // (sign & x) | top
    *low = _mm512_unpacklo_epi8(bottom, with_sign);
    *high = _mm512_unpackhi_epi8(bottom, with_sign);
  }
  // Ones for the first n of 64.
  CHUNKATTN_INLINE uint64_t first_bits(int64_t n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }
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

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
