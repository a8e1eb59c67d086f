// D += A B on tensor cores, 16 rows x 8 columns x 16 deep, fp32 sums.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cute/arch/mma_sm80.hpp>

#include "chunkattn/core/params.h"

namespace chunkattn {

// kCompute: format of both operands, kF16 or kBF16.
//
// Lane l holds of a 16x8 result rows l / 4 and l / 4 + 8, columns 2 (l % 4) and 2 (l % 4) + 1:
// sum[0], sum[1] of the upper row, sum[2], sum[3] of the lower one.
template <DType kCompute>
struct Multiply;

template <>
struct Multiply<DType::kBF16> {
  using Atom = cute::SM80_16x8x16_F32BF16BF16F32_TN;
  __device__ static uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ static float2 unpack(uint32_t pair) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  }
};

template <>
struct Multiply<DType::kF16> {
  using Atom = cute::SM80_16x8x16_F32F16F16F32_TN;
  __device__ static uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ static float2 unpack(uint32_t pair) { return __half22float2(reinterpret_cast<const __half2&>(pair)); }
};

template <DType kCompute>
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b_upper, uint32_t b_lower) {
  Multiply<kCompute>::Atom::fma(sum[0], sum[1], sum[2], sum[3], a[0], a[1], a[2], a[3], b_upper, b_lower, sum[0],
                                sum[1], sum[2], sum[3]);
}

}  // namespace chunkattn
