// The two products of a decode step: up to 4 query rows at once against rows of keys and values in place.
#pragma once
#include "compute.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

constexpr int64_t kDecodeKeys = 64;                         // keys of a block
constexpr int64_t kDecodePitch = kDecodeKeys + 2 * kLanes;  // of a row of scores, with room for a padded tail
constexpr int64_t kMaxDecodeRows = 16;

// scores[r][i] = q[r] . keys[i]. `keys` has pointers up to the next multiple of kLanes.
template <class Compute, DType kDType, int kRows>
static void decode_scores(const uint32_t* q, int64_t q_pitch, int64_t units, const char* const* keys, int64_t count,
                          float* scores) {
  constexpr int kKeys = kLanes / kRows, kVectors = Compute::template kKeyVectors<kDType>;
  for (int64_t i = 0; i < count; i += kKeys) {
    Vf sums[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) sums[j] = splat(0.0f);
    for (int64_t u = 0; u < units; u += kVectors * kLanes) {
      Vf rows[kRows][kVectors];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v)
          rows[r][v] = load(reinterpret_cast<const float*>(q + r * q_pitch + u + v * kLanes));
#pragma GCC unroll 16
      for (int k = 0; k < kKeys; ++k) {
        Vf key[kVectors];
        Compute::template key_units<kDType>(keys[i + k], u, units, key);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            sums[r * kKeys + k] = Compute::dot(rows[r][v], key[v], sums[r * kKeys + k]);
      }
    }
    float each[kLanes];
    store(each, sum_each(sums));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) memcpy(scores + r * kDecodePitch + i, each + r * kKeys, kKeys * 4);
  }
}

// Weights of a block's keys, a row kDecodePitch floats behind the other; `low`: what rounding took off, or nullptr.
struct DecodeWeights {
  const float *high, *low;

  CHUNKATTN_METHOD DecodeWeights from_row(int64_t r) const {
    return {high + r * kDecodePitch, low ? low + r * kDecodePitch : nullptr};
  }
};

// out[r] = out[r] * rescale[r] + sum_i weights[r][i] * values[i], for kCols vectors of columns from unit `first` on.
// With two keys a unit, columns stay in the order that interleaving leaves (Compute::in_order undoes it).
template <class Compute, DType kDType, int kRows, int kCols, bool kLow>
static void decode_values(const DecodeWeights& weights, const char* const* values, int64_t count, int64_t first,
                          int64_t units, const float* rescale, float* out, int64_t out_pitch) {
  Vf sums[kRows][kCols];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) sums[r][c] = splat(0.0f);
  for (int64_t i = 0; i < count; i += Compute::kPerUnit) {
    Vf columns[kCols];
    Compute::template value_columns<kDType, kCols>(values + i, first, units, columns);
#pragma GCC unroll 2
    for (int part = 0; part < (kLow ? 2 : 1); ++part) {
      const float* of_key = (part == 0 ? weights.high : weights.low) + i / Compute::kPerUnit;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        float unit;
        memcpy(&unit, of_key + r * kDecodePitch, 4);
        const Vf weight = splat(unit);
#pragma GCC unroll 8
        for (int c = 0; c < kCols; ++c) sums[r][c] = Compute::dot(columns[c], weight, sums[r][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
      float* target = out + r * out_pitch + first * Compute::kPerUnit + c * kLanes;
      store(target, madd(load(target), splat(rescale[r]), sums[r][c]));
    }
}

template <class Compute, DType kDType, int kRows, bool kLow>
static void decode_values_all(const DecodeWeights& weights, const char* const* values, int64_t count, int64_t units,
                              const float* rescale, float* out, int64_t out_pitch) {
  constexpr int kWide = kDecodeCols, kNarrow = Compute::template kColumnVectors<kDType>;
  constexpr int64_t kWideUnits = kWide * kLanes / Compute::kPerUnit;
  int64_t u = 0;
  for (; u + kWideUnits <= units; u += kWideUnits)
    decode_values<Compute, kDType, kRows, kWide, kLow>(weights, values, count, u, units, rescale, out, out_pitch);
  for (; u < units; u += kNarrow * kLanes / Compute::kPerUnit)
    decode_values<Compute, kDType, kRows, kNarrow, kLow>(weights, values, count, u, units, rescale, out, out_pitch);
}

template <class Compute, DType kDType>
static void decode_scores_of(int64_t rows, const uint32_t* q, int64_t q_pitch, int64_t units, const char* const* keys,
                             int64_t count, float* scores) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    decode_scores<Compute, kDType, 4>(q + r * q_pitch, q_pitch, units, keys, count, scores + r * kDecodePitch);
  if (r + 2 <= rows) {
    decode_scores<Compute, kDType, 2>(q + r * q_pitch, q_pitch, units, keys, count, scores + r * kDecodePitch);
    r += 2;
  }
  if (r < rows)
    decode_scores<Compute, kDType, 1>(q + r * q_pitch, q_pitch, units, keys, count, scores + r * kDecodePitch);
}

template <class Compute, DType kDType, bool kLow>
static void decode_values_of(int64_t rows, const DecodeWeights& weights, const char* const* values, int64_t count,
                             int64_t units, const float* rescale, float* out, int64_t out_pitch) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    decode_values_all<Compute, kDType, 4, kLow>(weights.from_row(r), values, count, units, rescale + r,
                                                out + r * out_pitch, out_pitch);
  if (r + 2 <= rows) {
    decode_values_all<Compute, kDType, 2, kLow>(weights.from_row(r), values, count, units, rescale + r,
                                                out + r * out_pitch, out_pitch);
    r += 2;
  }
  if (r < rows)
    decode_values_all<Compute, kDType, 1, kLow>(weights.from_row(r), values, count, units, rescale + r,
                                                out + r * out_pitch, out_pitch);
}

// What a decode step does with rows that are read as a dtype.
struct DecodeProducts {
  void (*scores)(int64_t rows, const uint32_t* q, int64_t q_pitch, int64_t units, const char* const* keys,
                 int64_t count, float* scores);
  void (*values)(int64_t rows, const DecodeWeights& weights, const char* const* values, int64_t count, int64_t units,
                 const float* rescale, float* out, int64_t out_pitch);
  void (*to_key_order)(uint32_t* q, int64_t n);
  void (*in_order)(const float* source, float* target, int64_t n);
};

template <class Compute, DType kDType>
static void to_key_order(uint32_t* q, int64_t n) {
  Compute::template to_key_order<kDType>(q, n);
}
template <class Compute, DType kDType>
static void in_order(const float* source, float* target, int64_t n) {
  Compute::template in_order<kDType>(source, target, n);
}

// low: weights come in two parts.
template <class Compute, DType kDType>
static DecodeProducts products_over(bool low) {
  constexpr bool kMayHaveLow = Compute::kPerUnit == 2;
  return {decode_scores_of<Compute, kDType>,
          low ? decode_values_of<Compute, kDType, kMayHaveLow> : decode_values_of<Compute, kDType, false>,
          to_key_order<Compute, kDType>, in_order<Compute, kDType>};
}
template <class Compute>
static DecodeProducts decode_products(DType dtype, bool low) {
  if constexpr (Compute::kPerUnit == 2) {
    if (dtype == DType::kE4M3) return products_over<Compute, DType::kE4M3>(low);
    if (dtype == DType::kE5M2) return products_over<Compute, DType::kE5M2>(low);
    if (dtype == DType::kI8) return products_over<Compute, DType::kI8>(low);
  } else {
#if defined(__AVX512F__)
    if (dtype == DType::kBF16) return products_over<Compute, DType::kBF16>(low);
#endif
  }
  return products_over<Compute, Compute::kNative>(low);
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
