// Groups of four warps that take different parts in a kernel (sm_90).
#pragma once
#include <cstdint>

namespace chunkattn::ptx {

// Gives registers back, or asks for more; all four warps, kCount a thread.
template <int kCount>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Barrier number `id` (1 … 15; 0 is __syncthreads) of `threads` threads.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace chunkattn::ptx
