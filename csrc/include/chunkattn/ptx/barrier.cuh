// Barriers of threads of a CTA.
#pragma once
#include <cstdint>

namespace chunkattn::ptx {

// Barrier number `id` (1 … 15; 0 is __syncthreads) of `threads` threads.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives there and goes on.
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// named_barrier_sync(); true for all if `any` is for one of them.
__device__ inline bool barrier_or(int id, int threads, bool any) {
  uint32_t result;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "bar.red.or.pred all, %2, %3, mine;\n"
      "selp.u32 %0, 1, 0, all;\n"
      "}"
      : "=r"(result)
      : "r"(static_cast<uint32_t>(any)), "r"(id), "r"(threads)
      : "memory");
  return result != 0;
}

}  // namespace chunkattn::ptx
