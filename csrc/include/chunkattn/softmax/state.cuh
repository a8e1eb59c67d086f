// Online softmax, and joining the states of disjoint sets of keys.
//
// Maxima are in units of log2. They are never lazy: the largest weight is then 1, which 16-bit formats hold without
// error. (As far as fp32 tells scores apart: a maximum is rounded where a weight's exponent is not, which shows in
// scores beyond 10^5.)
#pragma once
#include <cfloat>
#include <cmath>

#include "chunkattn/ptx/matrix.cuh"

namespace chunkattn {

// What is subtracted from scores: 0 for a row that has seen no key yet, so that -inf stays -inf.
__device__ inline float finite_max(float max) { return max == -INFINITY ? 0.0f : max; }

// Maximum and sum of weights of kRows rows. Four neighbouring lanes share a row: each has the row's maximum and its own
// part of the sum. Until a row has seen a score above -inf its maximum is the lowest finite number, from which -inf is
// as far as from any other: weights are 0 without a test.
template <int kRows>
struct SoftmaxRows {
  static constexpr float kLowest = -FLT_MAX;
  float max[kRows], sum[kRows];

  __device__ SoftmaxRows() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) max[row] = kLowest, sum[row] = 0.0f;
  }

  // Raises a row's maximum to that of a block's scores times `factor`; returns by how much older sums have to shrink.
  __device__ float raise(int row, float block_max, float factor) {
    block_max = fmaxf(block_max, __shfl_xor_sync(0xffffffff, block_max, 1));
    block_max = fmaxf(block_max, __shfl_xor_sync(0xffffffff, block_max, 2));
    const float top = fmaxf(max[row], block_max * factor);
    const float shrink = ptx::exp2_approximate(max[row] - top);
    max[row] = top;
    return shrink;
  }

  // -inf where no score was above it.
  __device__ float maximum(int row) const { return max[row] == kLowest ? -INFINITY : max[row]; }

  // The sum of the whole row, in all four lanes.
  __device__ float total(int row) const {
    float all = sum[row] + __shfl_xor_sync(0xffffffff, sum[row], 1);
    return all + __shfl_xor_sync(0xffffffff, all, 2);
  }
};

// Two states of one row with disjoint keys become one. Everybody who joins states takes the factors from here and
// forms values with `join`, in ascending order of keys: equal bits everywhere.
struct JoinFactors {
  float max, left, right;
  __device__ JoinFactors(float left_max, float right_max) : max(fmaxf(left_max, right_max)) {
    const float shift = finite_max(max);
    left = ptx::exp2_approximate(left_max - shift);
    right = ptx::exp2_approximate(right_max - shift);
  }
  __device__ float join(float x, float y) const { return fmaf(y, right, x * left); }
};

}  // namespace chunkattn
