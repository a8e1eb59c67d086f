// From products to scores in units of log2: scale, soft-cap, ALiBi. In the plain case there is nothing to do here and
// the softmax applies the scale itself.
#pragma once
#include <cmath>

#include "chunkattn/core/params.h"
#include "chunkattn/ptx/matrix.cuh"

namespace chunkattn {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// A scale that is the same for all keys of a KV head; 1 where scales belong to tokens, or there are none.
__device__ inline float constant_scale(const KvScale& scale, int32_t kv_head) {
  if (scale.mode == ScaleMode::kPerTensor) return *scale.data;
  if (scale.mode == ScaleMode::kPerHead) return scale.data[kv_head * scale.stride_head];
  return 1.0f;
}

// tanh to within 3e-7, and to within 3e-6 of itself where it is small, since a large soft-cap makes small ones large
// again: there by its series, which leaves out 2e-10. The instruction of the hardware errs by 5e-4.
__device__ inline float tanh_fast(float x) {
  const float square = x * x;
  const float series = fmaf(x * square, fmaf(square, fmaf(square, -17.0f / 315.0f, 2.0f / 15.0f), -1.0f / 3.0f), x);
  const float quotient = 1.0f - __fdividef(2.0f, 1.0f + ptx::exp2_approximate(x * (2.0f * kLog2e)));
  return fabsf(x) < 0.125f ? series : quotient;
}

struct ScoreMod {
  float scale;                     // softmax scale times the constant scale of the keys
  float softcap, inverse_softcap;  // 0 = off
  bool has_slopes, has_key_scales, transforms;

  __device__ ScoreMod(const AttentionParams& p, int32_t kv_head)
      : scale(p.softmax_scale * constant_scale(p.k.scale, kv_head)),
        softcap(p.softcap),
        inverse_softcap(1.0f / p.softcap),
        has_slopes(p.alibi_slopes != nullptr),
        has_key_scales(p.k.scale.mode == ScaleMode::kPerTokenHead) {
    // The plain case takes the maximum before scaling, which is right for a positive finite scale only.
    transforms = softcap != 0.0f || has_slopes || has_key_scales || !(scale > 0.0f && scale < INFINITY);
  }

  // What the softmax multiplies scores by.
  __device__ float softmax_factor() const { return transforms ? 1.0f : scale * kLog2e; }

  // key_scale: the key's own scale times that of the query row; distance = key position - query position.
  __device__ float apply(float product, float key_scale, float slope, int32_t distance) const {
    float score = product * (scale * key_scale);
    if (softcap != 0.0f) score = softcap * tanh_fast(score * inverse_softcap);
    if (has_slopes) score = fmaf(slope, static_cast<float>(distance), score);
    return score * kLog2e;
  }
};

__device__ inline float alibi_slope(const AttentionParams& p, int32_t request, int32_t q_head) {
  return p.alibi_slopes[request * p.alibi_stride_request + q_head * p.alibi_stride_head];
}

}  // namespace chunkattn
