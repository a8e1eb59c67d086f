// append_kv: a step's keys and values to their slots, turned by RoPE and quantised on the way; queries turned in place.
#pragma once
#include "kernels/append_kv/config.h"
#include "kernels/append_kv/row.cuh"
#include "kernels/append_kv/token.cuh"

namespace chunkattn::append {

// The scale of one stored row: read, or for dynamic quantisation computed from the row's largest magnitude and written.
template <DType stored>
__device__ inline float row_scale(const KvScale& scale, const Token& token, int64_t head, float amax, bool writes) {
  switch (scale.mode) {
    case ScaleMode::kNone: return 1.0f;
    case ScaleMode::kPerTensor: return *scale.data;
    case ScaleMode::kPerHead: return scale.data[head * scale.stride_head];
    case ScaleMode::kPerTokenHead: break;
  }
  const float factor = amax == 0.0f ? 1.0f : amax / Element<stored>::kLargest;
  if (writes)
    scale.data[token.page * scale.stride_page + token.offset * scale.stride_slot + head * scale.stride_head] = factor;
  return factor;
}

// One row from `source` to `target`. All lanes of the warp call it; `active` ones have a row.
template <DType dtype, DType stored, int kCount>
__device__ inline void move_row(const void* source, void* target, int dim, int rotary_dim, bool interleaved,
                                const Angles& angles, const KvScale* scale, const Token& token, int64_t head, int lane,
                                int lanes, bool active) {
  const auto* from = static_cast<const typename Element<dtype>::Type*>(source);
  auto* to = static_cast<typename Element<stored>::Type*>(target);
  const RowPlan<kCount> plan(dim, rotary_dim, interleaved);
  const auto read = [&](int number) {
    Unit<dtype, kCount> unit = load_unit<dtype, kCount>(from, plan, number);
    if (rotary_dim) rotate(unit, plan, number, rotary_dim, angles);
    return unit;
  };
  const bool mine = active && lane < plan.units();
  Unit<dtype, kCount> kept;  // the lane's first unit, nearly always its only one
  if (mine) kept = read(lane);
  float factor = 1.0f;
  if constexpr (dtype != stored) {
    float amax = 0.0f;
    if (scale->mode == ScaleMode::kPerTokenHead) {
      if (mine) amax = largest(kept, lane < plan.pairs);
      if (active)
        for (int u = lane + lanes; u < plan.units(); u += lanes) amax = fmaxf(amax, largest(read(u), u < plan.pairs));
      for (int step = lanes / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffff, amax, step));
    }
    // One lane reads a stored scale for all: a row is short, and so should be what is read besides it.
    if (active && (lane == 0 || scale->mode == ScaleMode::kPerTokenHead))
      factor = row_scale<stored>(*scale, token, head, amax, lane == 0);
    factor = __shfl_sync(0xffffffff, factor, 0, lanes);
  }
  if (!active) return;
  if (mine) store_unit<dtype, stored, kCount>(to, plan, lane, kept, factor);
  for (int u = lane + lanes; u < plan.units(); u += lanes)
    store_unit<dtype, stored, kCount>(to, plan, u, read(u), factor);
}

// `lanes` (a power of two up to 32) neighbouring lanes share a row. Dynamic shared memory: cos and sin of the token.
template <DType dtype, DType stored, int kCount>
__global__ void __launch_bounds__(kMaxThreads) append_kernel(const AppendParams p, int lanes) {
  extern __shared__ float angle_storage[];
  __shared__ Token shared_token;
  const int64_t t = blockIdx.x;
  const int half = p.rope.cos ? static_cast<int>(p.rope.rotary_dim / 2) : 0;
  if (threadIdx.x < 32) {
    const Token found = find_token(p, t, threadIdx.x);
    if (threadIdx.x == 0) shared_token = found;
  }
  __syncthreads();
  const Token token = shared_token;
  if (token.page < 0) return;  // a token that is not written is not turned either
  const bool turns = token.position >= 0;
  if (turns) {
    for (int i = threadIdx.x; i < 2 * half; i += blockDim.x) {
      const float* table = i < half ? p.rope.cos : p.rope.sin - half;
      angle_storage[i] = table[token.position * p.rope.stride_position + i];
    }
    __syncthreads();
  }
  const Angles angles{angle_storage, angle_storage + half};
  const int rotary_dim = turns ? 2 * half : 0;

  const int lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
  const int kv_heads = static_cast<int>(p.num_kv_heads);
  const int rows = 2 * kv_heads + (turns && p.q ? static_cast<int>(p.num_q_heads) : 0);
  constexpr int64_t kSize = size_of(dtype), kStoredSize = size_of(stored);
  const auto slot_of = [&](const PagedPool& pool, int64_t head) {
    const int64_t index = token.page * pool.stride_page + token.offset * pool.stride_slot + head * pool.stride_head;
    return static_cast<char*>(pool.data) + index * kStoredSize;
  };
  // Whole warps go round together: rows are exchanged by shuffles.
  for (int base = 0; base < rows; base += groups) {
    const int row = base + static_cast<int>(threadIdx.x) / lanes;
    const bool is_k = row < kv_heads, is_v = !is_k && row < 2 * kv_heads, is_q = !is_k && !is_v && row < rows;
    const int head = is_k ? row : is_v ? row - kv_heads : row - 2 * kv_heads;
    const bool stores = is_k || is_v;
    const PagedPool& pool = is_k ? p.k_pool : p.v_pool;
    const char* source = is_k ? static_cast<const char*>(p.k) + (t * p.k_stride_token + head * p.k_stride_head) * kSize
                              : static_cast<const char*>(p.v) + (t * p.v_stride_token + head * p.v_stride_head) * kSize;
    move_row<dtype, stored, kCount>(source, stores ? slot_of(pool, head) : nullptr,
                                    static_cast<int>(is_k ? p.head_dim : p.head_dim_v), is_k ? rotary_dim : 0,
                                    p.rope.interleaved, angles, &pool.scale, token, head, lane, lanes, stores);
    char* q = static_cast<char*>(p.q) + (t * p.q_stride_token + head * p.q_stride_head) * kSize;
    // Lanes that do not turn stay as they are: only the rotary part of q is moved.
    if (is_q)
      move_row<dtype, dtype, kCount>(q, q, rotary_dim, rotary_dim, p.rope.interleaved, angles, nullptr, token, head,
                                     lane, lanes, true);
  }
}

}  // namespace chunkattn::append
