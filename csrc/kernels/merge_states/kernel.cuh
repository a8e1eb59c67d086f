// out = (e^lse_a out_a + e^lse_b out_b) / (e^lse_a + e^lse_b), row by row (arXiv:1805.02867, §3.1).
#pragma once
#include "chunkattn/kv/element.cuh"
#include "kernels/merge_states/config.h"

namespace chunkattn::merge {

// The share of each state in the result. fp32 states have an error budget of half a unit in the last place:
// exponentials and the division run in fp64 there, once a row.
template <typename Real>
__device__ inline void find_shares(float lse_a, float lse_b, float* share_a, float* share_b, float* lse) {
  const float top = fmaxf(lse_a, lse_b), finite = top == -INFINITY ? 0.0f : top;
  const Real weight_a = exp(static_cast<Real>(lse_a) - finite), weight_b = exp(static_cast<Real>(lse_b) - finite);
  const Real total = weight_a + weight_b;
  *share_a = total == Real(0) ? 0.0f : static_cast<float>(weight_a / total);
  *share_b = total == Real(0) ? 0.0f : static_cast<float>(weight_b / total);
  // An overflowed state (+inf) stays visible: lse +inf, out NaN.
  *lse = top == INFINITY ? top : static_cast<float>(finite + log(total));
}

// Where a share is 0 the state is neutral even if its out is NaN; a NaN share must pass.
__device__ inline float weigh(float value, float share) { return share == 0.0f ? 0.0f : value * share; }

// `lanes` (a power of two up to 32) neighbouring lanes share a row; kCount elements a lane and access.
template <DType dtype, int kCount>
__global__ void __launch_bounds__(kThreads) merge_kernel(const MergeParams p, int lanes) {
  using E = Element<dtype>;
  using T = typename E::Type;
  using Real = std::conditional_t<dtype == DType::kF32, double, float>;
  const int lane = threadIdx.x % lanes, rows_per_block = kThreads / lanes;
  const int64_t rows = p.num_tokens * p.num_heads, packs = p.head_dim_v / kCount;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * rows_per_block + threadIdx.x / lanes;
  const bool inside = row < rows;
  const int64_t token = !inside      ? 0
                        : rows >> 32 ? row / p.num_heads
                                     : static_cast<uint32_t>(row) / static_cast<uint32_t>(p.num_heads);
  const int64_t head = inside ? row - token * p.num_heads : 0;

  float share_a = 0.0f, share_b = 0.0f;
  if (inside && lane == 0) {
    float lse;
    find_shares<Real>(p.a.lse[token * p.a.lse_stride_token + head * p.a.lse_stride_head],
                      p.b.lse[token * p.b.lse_stride_token + head * p.b.lse_stride_head], &share_a, &share_b, &lse);
    p.result.lse[token * p.result.lse_stride_token + head * p.result.lse_stride_head] = lse;
  }
  share_a = __shfl_sync(0xffffffff, share_a, 0, lanes);
  share_b = __shfl_sync(0xffffffff, share_b, 0, lanes);
  if (!inside) return;

  const T* a = static_cast<const T*>(p.a.out) + token * p.a.out_stride_token + head * p.a.out_stride_head;
  const T* b = static_cast<const T*>(p.b.out) + token * p.b.out_stride_token + head * p.b.out_stride_head;
  T* out = static_cast<T*>(p.result.out) + token * p.result.out_stride_token + head * p.result.out_stride_head;
  for (int64_t i = lane; i < packs; i += lanes) {
    const Pack<T, kCount> x = load_pack<kCount>(a, i), y = load_pack<kCount>(b, i);
    Pack<T, kCount> sum;
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      sum.item[j] = E::narrow(weigh(E::widen(x.item[j]), share_a) + weigh(E::widen(y.item[j]), share_b));
    store_pack(out, i, sum);
  }
}

}  // namespace chunkattn::merge
