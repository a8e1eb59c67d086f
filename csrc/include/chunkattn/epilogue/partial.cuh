// Partial states in the workspace: unnormalised sums of values, maxima (log2) and sums of weights.
#pragma once
#include <cstdint>

namespace chunkattn {

struct PartialStates {
  float *out = nullptr, *max = nullptr, *sum = nullptr;  // [rows, Dv], [rows], [rows]
  int32_t width = 0;                                     // Dv

  __device__ float4 values(int64_t row, int column) const {
    return *reinterpret_cast<const float4*>(out + row * width + column);
  }
  // `first`: the thread that has the row's first columns.
  __device__ void store(int64_t row, int column, float row_max, float row_sum, float4 values) const {
    *reinterpret_cast<float4*>(out + row * width + column) = values;
    if (column == 0) max[row] = row_max, sum[row] = row_sum;
  }
};

}  // namespace chunkattn
