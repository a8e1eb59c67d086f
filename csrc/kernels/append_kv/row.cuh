// One row of a head: read, turned, quantised, written by `lanes` neighbouring lanes.
#pragma once
#include "chunkattn/kv/element.cuh"

namespace chunkattn::append {

// What a lane handles at once: one pack of kCount elements, or two that RoPE turns into each other. With pairs
// (i, i + half) those are packs `half` apart; interleaved pairs lie within a pack, unless a pack is one element.
template <int kCount>
struct RowPlan {
  int packs, pairs, partner;  // packs of the row; units of two packs, which come first; distance of the two
  bool adjacent;              // the two packs of a unit are 2u and 2u + 1

  __device__ RowPlan(int dim, int rotary_dim, bool interleaved) {
    const bool paired = rotary_dim > 0 && !(interleaved && kCount > 1);
    packs = dim / kCount;
    pairs = paired ? rotary_dim / 2 / kCount : 0;
    partner = interleaved ? 1 : pairs;
    adjacent = interleaved;
  }
  __device__ int units() const { return packs - pairs; }
  __device__ int first_pack(int unit) const { return unit >= pairs ? unit + pairs : adjacent ? 2 * unit : unit; }
};

// cos and sin of the token's position: [rotary_dim / 2] each, in shared memory.
struct Angles {
  const float *cos, *sin;
};

template <DType dtype, int kCount>
struct Unit {
  using E = Element<dtype>;
  Pack<typename E::Type, kCount> first, second;  // second only of a pair
};

template <int kCount>
__device__ inline void load_angles(const float* angles, int begin, float (&values)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const auto four = load_pack<4>(angles, begin / 4 + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[4 * i + j] = four.item[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = angles[begin + i];
  }
}

// Turns the unit in place and rounds once to its dtype, as a separate rotation would.
template <DType dtype, int kCount>
__device__ inline void rotate(Unit<dtype, kCount>& unit, const RowPlan<kCount>& plan, int number, int rotary_dim,
                              const Angles& angles) {
  using E = Element<dtype>;
  if (number < plan.pairs) {
    float cos[kCount], sin[kCount];
    load_angles(angles.cos, number * kCount, cos), load_angles(angles.sin, number * kCount, sin);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = E::widen(unit.first.item[i]), y = E::widen(unit.second.item[i]);
      unit.first.item[i] = E::narrow(x * cos[i] - y * sin[i]);
      unit.second.item[i] = E::narrow(y * cos[i] + x * sin[i]);
    }
    return;
  }
  if constexpr (kCount > 1) {
    if (plan.pairs > 0 || number * kCount >= rotary_dim) return;  // not interleaved, or past the lanes that turn
    float cos[kCount / 2], sin[kCount / 2];
    load_angles(angles.cos, number * (kCount / 2), cos), load_angles(angles.sin, number * (kCount / 2), sin);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float x = E::widen(unit.first.item[2 * i]), y = E::widen(unit.first.item[2 * i + 1]);
      unit.first.item[2 * i] = E::narrow(x * cos[i] - y * sin[i]);
      unit.first.item[2 * i + 1] = E::narrow(y * cos[i] + x * sin[i]);
    }
  }
}

template <DType dtype, int kCount>
__device__ inline Unit<dtype, kCount> load_unit(const typename Element<dtype>::Type* row, const RowPlan<kCount>& plan,
                                                int number) {
  Unit<dtype, kCount> unit;
  const int pack = plan.first_pack(number);
  unit.first = load_pack<kCount>(row, pack);
  if (number < plan.pairs) unit.second = load_pack<kCount>(row, pack + plan.partner);
  return unit;
}

// Largest magnitude; a NaN does not spoil its neighbours.
template <DType dtype, int kCount>
__device__ inline float largest(const Unit<dtype, kCount>& unit, bool is_pair) {
  float found = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    found = fmaxf(found, fabsf(Element<dtype>::widen(unit.first.item[i])));
    if (is_pair) found = fmaxf(found, fabsf(Element<dtype>::widen(unit.second.item[i])));
  }
  return found;
}

template <DType dtype, DType stored, int kCount>
__device__ inline void store_pack_as(typename Element<stored>::Type* row, int pack,
                                     const Pack<typename Element<dtype>::Type, kCount>& values, float scale) {
  if constexpr (dtype == stored) {
    store_pack(row, pack, values);
  } else {
    Pack<typename Element<stored>::Type, kCount> out;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      out.item[i] = Element<stored>::narrow(Element<dtype>::widen(values.item[i]) / scale);
    store_pack(row, pack, out);
  }
}

template <DType dtype, DType stored, int kCount>
__device__ inline void store_unit(typename Element<stored>::Type* row, const RowPlan<kCount>& plan, int number,
                                  const Unit<dtype, kCount>& unit, float scale) {
  const int pack = plan.first_pack(number);
  store_pack_as<dtype, stored, kCount>(row, pack, unit.first, scale);
  if (number < plan.pairs) store_pack_as<dtype, stored, kCount>(row, pack + plan.partner, unit.second, scale);
}

}  // namespace chunkattn::append
