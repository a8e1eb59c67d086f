// Online softmax with rows in the lanes: every step is vertical, and depends on nothing but the row itself.
#pragma once
#include "compute.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// Raises the running maxima to the maxima of a block's raw scores times `factor`, and says by how much older sums
// shrink. Returns whether any lane moved. A block without a visible key (-inf) moves nothing.
// The maximum is exact, not lazy: the largest weight is then 1, which bf16 holds without error. With a maximum that
// lags by up to 2^8, rows with few heavy keys left the error budget (1.2 of it instead of 0.9).
CHUNKATTN_INLINE bool raise_max(const float* block_max, float factor, int vecs, float* row_max, float* rescale) {
  bool moved = false;
  for (int v = 0; v < vecs; ++v) {
    const Vf top = mul(load(block_max + v * kLanes), splat(factor)), held = load(row_max + v * kLanes);
    const Mask rises = less(held, top);
    store(row_max + v * kLanes, select(rises, top, held));
    store(rescale + v * kLanes, select(rises, exp2_of(sub(held, top)), splat(1.0f)));
    moved |= any(rises);
  }
  return moved;
}

// What is subtracted from scores: 0 for a row that has seen no key yet, so that -inf stays -inf.
CHUNKATTN_INLINE Vf finite_max(Vf row_max) {
  return select(less(splat(-kInfinity), row_max), row_max,
                select(less(row_max, splat(kInfinity)), splat(0.0f), row_max));
}

// Turns num_keys (even) rows of scores into weights exp2(score * factor - max), in place, as operand of the second
// product; adds them to row_sum. value_scale [num_keys] multiplies the weights but not their sum; may be nullptr.
// `low`, if not nullptr, receives what rounding to the compute type took from the weights, as a second operand.
template <class Compute, int kVecs>
static void weigh(float* scores, int64_t num_keys, float factor, const float* row_max, const float* rescale,
                  const float* value_scale, float* row_sum, float* low) {
  constexpr int64_t kPitch = kVecs * kLanes;
  const Vf scale = splat(factor);
  for (int v = 0; v < kVecs; ++v) {
    const Vf shift = finite_max(load(row_max + v * kLanes));
    const Vf minus = sub(splat(0.0f), shift);
    Vf even = splat(0.0f), odd = splat(0.0f);
    float* source = scores + v * kLanes;
    float* target = source;
    for (int64_t i = 0; i < num_keys; i += 2) {
      Vf a = exp2_of<Compute::kExp2Degree>(madd(load(source), scale, minus));
      Vf b = exp2_of<Compute::kExp2Degree>(madd(load(source + kPitch), scale, minus));
      source += 2 * kPitch;
      even = add(even, a);
      odd = add(odd, b);
      if (value_scale) {
        a = mul(a, splat(value_scale[i]));
        b = mul(b, splat(value_scale[i + 1]));
      }
      if constexpr (Compute::kPerUnit == 1) {
        store(target, a);
        store(target + kPitch, b);
        target += 2 * kPitch;
      } else {
        const Vf high = Compute::pair(a, b);
        store(target, high);
        if (low) store(low + (target - scores), Compute::pair(sub(a, Compute::even(high)), sub(b, Compute::odd(high))));
        target += kPitch;
      }
    }
    const Vf sum = add(even, odd);
    store(row_sum + v * kLanes, madd(load(row_sum + v * kLanes), load(rescale + v * kLanes), sum));
  }
}

template <class Compute>
CHUNKATTN_INLINE void weigh_of(int vecs, float* scores, int64_t num_keys, float factor, const float* row_max,
                               const float* rescale, const float* value_scale, float* row_sum, float* low) {
  if (vecs == 1) return weigh<Compute, 1>(scores, num_keys, factor, row_max, rescale, value_scale, row_sum, low);
  if constexpr (kTileVecs > 2)
    if (vecs == 3) return weigh<Compute, 3>(scores, num_keys, factor, row_max, rescale, value_scale, row_sum, low);
  weigh<Compute, 2>(scores, num_keys, factor, row_max, rescale, value_scale, row_sum, low);
}

// Joining two states of a row (unnormalised sum of values, maximum, sum of weights). Everybody who joins states, in
// whatever layout, takes the two factors from here and forms x * left + y * right with `join`: equal bits everywhere.
struct JoinFactors {
  Vf max, left, right;
};

CHUNKATTN_INLINE JoinFactors join_factors(Vf left_max, Vf right_max) {
  // NaN wins over everything, so that a poisoned row stays poisoned.
  const Vf top = select(less(left_max, right_max), right_max, max(right_max, left_max));
  const Vf shift = finite_max(top);
  return {top, exp2_of(sub(left_max, shift)), exp2_of(sub(right_max, shift))};
}

CHUNKATTN_INLINE Vf join(Vf x, Vf left, Vf y, Vf right) { return madd(y, right, mul(x, left)); }

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
