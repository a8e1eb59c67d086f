// Copies of boxes of a tensor into shared memory by the tensor memory accelerator (sm_90).
#pragma once
#include <cuda.h>

#include <cstdint>

namespace chunkattn::ptx {

// Brings the box at these coordinates (innermost first) of a tensor of four dims; zeros where it leaves the tensor. Its
// bytes are counted by the barrier.
__device__ inline void copy_box(uint32_t target, const CUtensorMap* map, uint32_t barrier, int32_t x0, int32_t x1,
                                int32_t x2, int32_t x3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

// Orders this thread's view of shared memory, as plain accesses and cp.async left it, before what tensor copies and
// wgmma do there.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace chunkattn::ptx
