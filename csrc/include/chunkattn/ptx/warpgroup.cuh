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

}  // namespace chunkattn::ptx
