// Sums and prefix sums of 64-bit words over the CTA of the plan kernel.
#pragma once
#include <cstdint>

#include "kernels/plan/config.h"

namespace chunkattn::planning {

template <int kCount>
struct Words {
  int64_t item[kCount] = {};
};

// Every thread's total over the CTA, in thread 0 alone. `scratch` may be used again after the next barrier.
template <int kCount, typename Combine>
__device__ inline Words<kCount> reduce(Words<kCount> mine, Combine combine, Words<kCount>* scratch) {
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      mine.item[i] = combine(i, mine.item[i], __shfl_xor_sync(0xffffffff, mine.item[i], step));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int warp = 1; warp < kWarps; ++warp)
#pragma unroll
      for (int i = 0; i < kCount; ++i) mine.item[i] = combine(i, mine.item[i], scratch[warp].item[i]);
  return mine;
}

// Replaces every thread's words by the sums of those of threads 0 to itself; returns the CTA's totals to all threads.
// `scratch` may be used again after the next barrier.
template <int kCount>
__device__ inline Words<kCount> prefix_sums(Words<kCount>* mine, Words<kCount>* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t other = __shfl_up_sync(0xffffffff, mine->item[i], step);
      if (lane >= step) mine->item[i] += other;
    }
  }
  if (lane == 31) scratch[warp] = *mine;
  __syncthreads();
  Words<kCount> total;
  for (int other = 0; other < kWarps; ++other)
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (other == warp) mine->item[i] += total.item[i];
      total.item[i] += scratch[other].item[i];
    }
  return total;
}

}  // namespace chunkattn::planning
