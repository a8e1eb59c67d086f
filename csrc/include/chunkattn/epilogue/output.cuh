// From finished states to results: sinks, division by the sum, log-sum-exp.
#pragma once
#include <cmath>
#include <cstdint>

#include "chunkattn/core/params.h"
#include "chunkattn/kv/element.cuh"

namespace chunkattn {

struct RowResult {
  float scale, lse;  // what the sums of values are multiplied by; natural log
};

// `max` in units of log2. The sink is one more logit without a value; it enters here, once, whatever the splits.
__device__ inline RowResult finish_row(const AttentionParams& p, int32_t q_head, float value_scale, float max,
                                       float sum) {
  constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  const float sink = p.sinks ? p.sinks[q_head * p.sinks_stride] : -INFINITY;
  if (max == -INFINITY && sum == 0.0f) return {0.0f, sink};
  if (sink == -INFINITY) return {value_scale / sum, fmaf(max, kLn2, logf(sum))};
  const float sink_log2 = sink * kLog2e, top = fmaxf(max, sink_log2);
  const float shrink = exp2f(max - top), total = fmaf(sum, shrink, exp2f(sink_log2 - top));
  return {value_scale * shrink / total, fmaf(top, kLn2, logf(total))};
}

// Four neighbouring elements of a row of out.
template <DType dtype>
__device__ inline void store_four(const AttentionParams& p, int64_t token, int32_t q_head, int column, bool aligned,
                                  float4 values) {
  using E = Element<dtype>;
  using T = typename E::Type;
  T* row = static_cast<T*>(p.out) + token * p.out_stride_token + q_head * p.out_stride_head;
  const Pack<T, 4> pack{{E::narrow(values.x), E::narrow(values.y), E::narrow(values.z), E::narrow(values.w)}};
  if (aligned) return store_pack(row, column / 4, pack);
#pragma unroll
  for (int i = 0; i < 4; ++i) row[column + i] = pack.item[i];
}

__device__ inline void store_lse(const AttentionParams& p, int64_t token, int32_t q_head, float lse) {
  if (p.lse) p.lse[token * p.lse_stride_token + q_head * p.lse_stride_head] = lse;
}

}  // namespace chunkattn
