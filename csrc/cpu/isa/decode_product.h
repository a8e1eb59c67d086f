// The two products of a decode step: up to 4 query rows at once against rows of keys and values in place.
#pragma once
#include "compute.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

constexpr int64_t kDecodeKeys = 64;                         // keys of a block
constexpr int64_t kDecodePitch = kDecodeKeys + 2 * kLanes;  // of a row of scores, with room for a padded tail
constexpr int64_t kMaxDecodeRows = 16;

// scores[r][i] = q[r] . keys[i]. `keys` has pointers up to the next multiple of kLanes.
template <class Compute, int kRows>
static void decode_scores(const uint32_t* q, int64_t q_pitch, int64_t units, const char* const* keys, int64_t count,
                          float* scores) {
  constexpr int kKeys = kLanes / kRows;
  for (int64_t i = 0; i < count; i += kKeys) {
    Vf sums[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) sums[j] = splat(0.0f);
    for (int64_t u = 0; u < units; u += kLanes) {
      Vf rows[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) rows[r] = load(reinterpret_cast<const float*>(q + r * q_pitch + u));
#pragma GCC unroll 16
      for (int k = 0; k < kKeys; ++k) {
        const Vf key = load_first(keys[i + k] + u * 4, units - u);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r * kKeys + k] = Compute::dot(rows[r], key, sums[r * kKeys + k]);
      }
    }
    float each[kLanes];
    store(each, sum_each(sums));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) memcpy(scores + r * kDecodePitch + i, each + r * kKeys, kKeys * 4);
  }
}

// out[r] = out[r] * rescale[r] + sum_i weights[r][i] * values[i], for kCols vectors of columns from unit `first` on.
// With two keys a unit, columns stay in the order that interleaving leaves (Compute::in_order undoes it).
template <class Compute, int kRows, int kCols>
static void decode_values(const float* weights, const char* const* values, int64_t count, int64_t first, int64_t units,
                          const float* rescale, float* out, int64_t out_pitch) {
  Vf sums[kRows][kCols];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) sums[r][c] = splat(0.0f);
  for (int64_t i = 0; i < count; i += Compute::kPerUnit) {
    Vf columns[kCols];
    Compute::template value_columns<kCols>(values + i, first, units, columns);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      float unit;
      memcpy(&unit, weights + r * kDecodePitch + i / Compute::kPerUnit, 4);
      const Vf weight = splat(unit);
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) sums[r][c] = Compute::dot(columns[c], weight, sums[r][c]);
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

template <class Compute, int kRows>
static void decode_values_all(const float* weights, const char* const* values, int64_t count, int64_t units,
                              const float* rescale, float* out, int64_t out_pitch) {
  constexpr int kWide = kDecodeCols, kNarrow = Compute::kPerUnit;
  constexpr int64_t kWideUnits = kWide * kLanes / Compute::kPerUnit;
  int64_t u = 0;
  for (; u + kWideUnits <= units; u += kWideUnits)
    decode_values<Compute, kRows, kWide>(weights, values, count, u, units, rescale, out, out_pitch);
  for (; u < units; u += kLanes)
    decode_values<Compute, kRows, kNarrow>(weights, values, count, u, units, rescale, out, out_pitch);
}

template <class Compute>
static void decode_scores_of(int64_t rows, const uint32_t* q, int64_t q_pitch, int64_t units, const char* const* keys,
                             int64_t count, float* scores) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    decode_scores<Compute, 4>(q + r * q_pitch, q_pitch, units, keys, count, scores + r * kDecodePitch);
  if (r + 2 <= rows) {
    decode_scores<Compute, 2>(q + r * q_pitch, q_pitch, units, keys, count, scores + r * kDecodePitch);
    r += 2;
  }
  if (r < rows) decode_scores<Compute, 1>(q + r * q_pitch, q_pitch, units, keys, count, scores + r * kDecodePitch);
}

template <class Compute>
static void decode_values_of(int64_t rows, const float* weights, const char* const* values, int64_t count,
                             int64_t units, const float* rescale, float* out, int64_t out_pitch) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    decode_values_all<Compute, 4>(weights + r * kDecodePitch, values, count, units, rescale + r, out + r * out_pitch,
                                  out_pitch);
  if (r + 2 <= rows) {
    decode_values_all<Compute, 2>(weights + r * kDecodePitch, values, count, units, rescale + r, out + r * out_pitch,
                                  out_pitch);
    r += 2;
  }
  if (r < rows)
    decode_values_all<Compute, 1>(weights + r * kDecodePitch, values, count, units, rescale + r, out + r * out_pitch,
                                  out_pitch);
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
