// Atomics of the whole device with the memory order that their use needs.
#pragma once
#include <cstdint>

namespace chunkattn::ptx {

// Orders everything this thread has seen (its CTA's writes too, after a barrier) before the add for whoever sees its
// result, and everything of earlier adders before what follows here.
__device__ inline int32_t add_acquire_release(int32_t* counter, int32_t value) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

// Only counts; orders nothing.
__device__ inline int32_t add_relaxed(int32_t* counter, int32_t value) {
  int32_t before;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

}  // namespace chunkattn::ptx
