// The two matrix products of attention as one register tile: kTileBroadcasts values of one operand times kVecs
// vectors of query rows. Query rows lie in the lanes, so nothing is ever reduced across a vector.
#pragma once
#include "compute.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

CHUNKATTN_INLINE Vf splat_unit(const uint32_t* p) {
  float x;
  memcpy(&x, p, 4);
  return splat(x);
}

// scores[i][row] = sum_u keys[i][u] * q[u][row] for kTileBroadcasts keys; raises block_max[row] to their maximum.
// q is [units][kVecs * kLanes], scores [kTileBroadcasts][kVecs * kLanes].
// Not inlined: among the caller's variables g++ spills the operands inside the loop.
template <class Compute, int kVecs>
__attribute__((noinline)) static void score_tile(const uint32_t* keys, int64_t key_stride, const uint32_t* q,
                                                 int64_t units, float* scores, float* block_max) {
  constexpr int kRows = kVecs * kLanes;
  Vf sums[kTileBroadcasts][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kTileBroadcasts; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVecs; ++v) sums[i][v] = splat(0.0f);
  for (int64_t u = 0; u < units; ++u) {
    Vf rows[kVecs];
#pragma GCC unroll 3
    for (int v = 0; v < kVecs; ++v) rows[v] = load(reinterpret_cast<const float*>(q) + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileBroadcasts; ++i) {
      const Vf key = splat_unit(keys + i * key_stride);
#pragma GCC unroll 3
      for (int v = 0; v < kVecs; ++v) sums[i][v] = Compute::dot(rows[v], key, sums[i][v]);
    }
    keys += 1;
    q += kRows;
  }
#pragma GCC unroll 3
  for (int v = 0; v < kVecs; ++v) {
    Vf top = load(block_max + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileBroadcasts; ++i) {
      store(scores + i * kRows + v * kLanes, sums[i][v]);
      top = max(top, sums[i][v]);
    }
    store(block_max + v * kLanes, top);
  }
}

// out[i][row] = out[i][row] * rescale[row] + sum_u values[u][i] * weights[u][row] for kTileBroadcasts columns of V.
// values is a panel [units][kTileBroadcasts], weights [units][kVecs * kLanes]; rescale may be nullptr (1).
// The block is summed apart and added at the end: shorter sums round less.
template <class Compute, int kVecs>
__attribute__((noinline)) static void value_tile(const uint32_t* values, const uint32_t* weights, int64_t units,
                                                 float* out, const float* rescale) {
  constexpr int kRows = kVecs * kLanes;
  Vf sums[kTileBroadcasts][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kTileBroadcasts; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVecs; ++v) sums[i][v] = splat(0.0f);
  for (int64_t u = 0; u < units; ++u) {
    Vf rows[kVecs];
#pragma GCC unroll 3
    for (int v = 0; v < kVecs; ++v) rows[v] = load(reinterpret_cast<const float*>(weights) + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kTileBroadcasts; ++i) {
      const Vf value = splat_unit(values + i);
#pragma GCC unroll 3
      for (int v = 0; v < kVecs; ++v) sums[i][v] = Compute::dot(rows[v], value, sums[i][v]);
    }
    values += kTileBroadcasts;
    weights += kRows;
  }
#pragma GCC unroll 3
  for (int v = 0; v < kVecs; ++v) {
    const Vf scale = rescale ? load(rescale + v * kLanes) : splat(1.0f);
#pragma GCC unroll 8
    for (int i = 0; i < kTileBroadcasts; ++i) {
      float* target = out + i * kRows + v * kLanes;
      store(target, madd(load(target), scale, sums[i][v]));
    }
  }
}

template <class Compute>
CHUNKATTN_INLINE void score_tile_of(int vecs, const uint32_t* keys, int64_t key_stride, const uint32_t* q,
                                    int64_t units, float* scores, float* block_max) {
  if (vecs == 1) return score_tile<Compute, 1>(keys, key_stride, q, units, scores, block_max);
  if constexpr (kTileVecs > 2)
    if (vecs == 3) return score_tile<Compute, 3>(keys, key_stride, q, units, scores, block_max);
  score_tile<Compute, 2>(keys, key_stride, q, units, scores, block_max);
}

template <class Compute>
CHUNKATTN_INLINE void value_tile_of(int vecs, const uint32_t* values, const uint32_t* weights, int64_t units,
                                    float* out, const float* rescale) {
  if (vecs == 1) return value_tile<Compute, 1>(values, weights, units, out, rescale);
  if constexpr (kTileVecs > 2)
    if (vecs == 3) return value_tile<Compute, 3>(values, weights, units, out, rescale);
  value_tile<Compute, 2>(values, weights, units, out, rescale);
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
