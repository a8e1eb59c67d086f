// Rows of one head as fp32, for the memory-bound operators (append_kv, merge_states).
#pragma once
#include <cstdint>

#include "chunkattn/core/params.h"

namespace chunkattn {

constexpr int64_t kMaxHeadDim = 256;

// row[n] of `dtype` (fp32, fp16, bf16) to fp32.
void load_row(DType dtype, const void* row, float* values, int64_t n);

// fp32 to row[n] of `dtype`, to nearest even. fp8 and int8 saturate; NaN stays NaN in fp8 and becomes 0 in int8.
void store_row(DType dtype, const float* values, void* row, int64_t n);

// Largest finite stored value of a quantised dtype.
float largest_value(DType dtype);

// Rotates the first 2 * half lanes; interleaved pairs (2i, 2i+1), otherwise (i, i + half).
void rotate_row(float* values, const float* cos, const float* sin, int64_t half, bool interleaved);

}  // namespace chunkattn
