// out = (e^lse_a out_a + e^lse_b out_b) / (e^lse_a + e^lse_b), row by row (arXiv:1805.02867, §3.1).
#pragma once
#include "chunkattn/kv/element.cuh"
#include "kernels/merge_states/config.h"

namespace chunkattn::merge {

// e^x for x <= 0 (or NaN), to about 1e-11: fp32 states have an error budget of half a unit in the last place, which a
// product with an fp32 exponential would exceed. The library's exp costs a call and registers around it.
__device__ inline double small_exp(double x) {
  constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
  if (x < -700.0) return 0.0;
  const double n = rint(x * kLog2E), f = fma(-n, kLn2, x);
  double sum = 1.0 / 40320;
  const double factors[] = {1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0};
#pragma unroll
  for (const double factor : factors) sum = fma(sum, f, factor);
  return sum * __longlong_as_double((static_cast<int64_t>(n) + 1023) << 52);
}

// The share of each state in the result, and the log of the sum of their weights. `lse` of -inf is a weight of 0.
template <bool kExact>
__device__ inline void find_shares(float lse_a, float lse_b, float* share_a, float* share_b, float* lse) {
  const bool a_is_top = lse_a >= lse_b;
  const float top = a_is_top ? lse_a : lse_b, other = a_is_top ? lse_b : lse_a;
  float top_share, other_share, weight;
  if constexpr (kExact) {
    const double exact_weight = small_exp(static_cast<double>(other) - top), total = 1.0 + exact_weight;
    double inverse = 1.0f / static_cast<float>(total);
    inverse = inverse * (2.0 - total * inverse);
    top_share = static_cast<float>(inverse), other_share = static_cast<float>(exact_weight * inverse);
    weight = static_cast<float>(exact_weight);
  } else {
    weight = expf(other - top);
    top_share = 1.0f / (1.0f + weight), other_share = weight * top_share;
  }
  *lse = top + log1pf(weight);
  if (top == -INFINITY) top_share = other_share = 0.0f, *lse = top;
  // An overflowed state (+inf) stays visible: lse +inf, out NaN.
  if (top == INFINITY) top_share = NAN, other_share = other == INFINITY ? NAN : 0.0f, *lse = top;
  *share_a = a_is_top ? top_share : other_share;
  *share_b = a_is_top ? other_share : top_share;
}

// Where a share is 0 the state is neutral even if its out is NaN; a NaN share must pass.
__device__ inline float weigh(float value, float share) { return share == 0.0f ? 0.0f : value * share; }

// `lanes` (a power of two up to 32) neighbouring lanes share a row; kCount elements a lane and access.
template <DType dtype, int kCount>
__global__ void __launch_bounds__(kThreads) merge_kernel(const MergeParams p, int lanes) {
  using E = Element<dtype>;
  using T = typename E::Type;
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
    find_shares<dtype == DType::kF32>(p.a.lse[token * p.a.lse_stride_token + head * p.a.lse_stride_head],
                                      p.b.lse[token * p.b.lse_stride_token + head * p.b.lse_stride_head], &share_a,
                                      &share_b, &lse);
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
