// copy_pages, gather_pages, scatter_pages: whole pages between strided blocks.
#pragma once
#include <cstdint>

#include "kernels/launch.h"
#include "kernels/pages/config.h"

namespace chunkattn::pages {

// A page as packs of kBytes in a few dims, innermost first; the first is contiguous on both sides.
struct PageLayout {
  int32_t num_dims = 1;
  uint32_t size[kMaxDims] = {};                                        // packs, then counts
  int64_t source_stride[kMaxDims] = {}, target_stride[kMaxDims] = {};  // bytes
  uint32_t packs = 0;                                                  // of the page
  uint32_t blocks_per_page = 1;
};

template <int kBytes>
struct Bytes;
template <>
struct Bytes<16> {
  using Type = uint4;
};
template <>
struct Bytes<8> {
  using Type = uint2;
};
template <>
struct Bytes<4> {
  using Type = uint32_t;
};
template <>
struct Bytes<2> {
  using Type = uint16_t;
};
template <>
struct Bytes<1> {
  using Type = uint8_t;
};

__device__ inline int64_t page_of(const PageView& view, int64_t index) {
  if (!view.pages) return index;
  return view.pages_are_64 ? static_cast<const int64_t*>(view.pages)[index * view.pages_stride]
                           : static_cast<const int32_t*>(view.pages)[index * view.pages_stride];
}

template <int kBytes>
__global__ void __launch_bounds__(kThreads) move_pages(const PageParams p, const PageLayout layout) {
  using T = typename Bytes<kBytes>::Type;
  const int64_t index = blockIdx.x / layout.blocks_per_page;
  // One lane reads the ids for its warp.
  int64_t source_page = 0, target_page = 0;
  if (threadIdx.x % 32 == 0) source_page = page_of(p.source, index), target_page = page_of(p.target, index);
  source_page = __shfl_sync(0xffffffff, source_page, 0);
  target_page = __shfl_sync(0xffffffff, target_page, 0);
  if (source_page < 0 || source_page >= p.source.num_pages || target_page < 0 || target_page >= p.target.num_pages)
    return;  // contents are checked in debug mode, before the launch
  const char* source = p.source.data + source_page * p.source.stride[0] * p.element_size;
  char* target = p.target.data + target_page * p.target.stride[0] * p.element_size;

  const uint32_t first = blockIdx.x % layout.blocks_per_page * kPacksPerBlock + threadIdx.x;
  T packs[kPacksPerThread];
  int64_t to[kPacksPerThread];
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    uint32_t rest = first + i * kThreads;
    if (rest >= layout.packs) continue;
    int64_t from = 0;
    to[i] = 0;
    for (int d = 0; d < layout.num_dims; ++d) {
      const uint32_t next = d + 1 < layout.num_dims ? rest / layout.size[d] : 0;
      const int64_t place = rest - next * layout.size[d];
      from += place * layout.source_stride[d], to[i] += place * layout.target_stride[d];
      rest = next;
    }
    packs[i] = *reinterpret_cast<const T*>(source + from);
  }
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i)
    if (first + i * kThreads < layout.packs) *reinterpret_cast<T*>(target + to[i]) = packs[i];
}

}  // namespace chunkattn::pages
