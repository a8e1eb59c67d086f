// What tensor copies are told of the paged pools. Made on the host, before a launch.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/alignment.h"
#include "kernels/attention/params.cuh"

namespace chunkattn::sm90 {

// Pools as tensors [page, head, slot, element]. A box is 128 bytes of so many slots of a page; 0 slots: the pool does
// not allow boxes, and warps copy rows.
struct TensorMaps {
  CUtensorMap keys, values;
  int32_t key_box = 0, value_box = 0;
  bool both = false;  // pools allow boxes
};

// Slots of a box: as many as always lie in one page and one block, if that is a multiple of the 8 rows after which the
// permutation of a tile repeats.
inline int32_t box_slots(int64_t page_size, int block) {
  int64_t slots = block;
  while (page_size % slots != 0) slots /= 2;
  return slots >= 8 ? static_cast<int32_t>(slots) : 0;
}

// The driver's function, found through the runtime so that the library needs no libcuda to be loaded.
inline auto tensor_map_encoder() {
  static const auto found = [] {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult status;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &status) !=
            cudaSuccess ||
        status != cudaDriverEntryPointSuccess)
      symbol = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(symbol);
  }();
  return found;
}

// Writes the map of a pool of 16-bit elements and returns the slots of its boxes.
inline int32_t describe_pool(const PagedPool& pool, const AttentionParams& p, int64_t head_dim, int block,
                             CUtensorMap* map) {
  const int64_t sizes[] = {head_dim, p.page_size, p.num_kv_heads, p.num_pages};
  const int64_t strides[] = {pool.stride_slot, pool.stride_head, pool.stride_page};
  const int32_t slots = box_slots(p.page_size, block);
  const auto encode = tensor_map_encoder();
  if (slots == 0 || encode == nullptr || !is_aligned(pool.data, 16)) return 0;
  cuuint64_t size[4], stride[3];
  for (int dim = 0; dim < 4; ++dim) size[dim] = static_cast<cuuint64_t>(sizes[dim]);
  for (int dim = 0; dim < 3; ++dim) {
    const int64_t bytes = sizes[dim + 1] == 1 ? 16 : strides[dim] * 2;  // nobody steps along a dim of size 1
    if (bytes <= 0 || !is_multiple(bytes, 16) || bytes >= int64_t{1} << 40) return 0;
    stride[dim] = static_cast<cuuint64_t>(bytes);
  }
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(slots), 1, 1}, steps[] = {1, 1, 1, 1};
  const CUtensorMapDataType type =
      pool.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult status =
      encode(map, type, 4, pool.data, size, stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? slots : 0;
}

inline TensorMaps tensor_maps(const AttentionParams& p, int block) {
  TensorMaps maps{};
  maps.key_box = describe_pool(p.k, p, p.head_dim, block, &maps.keys);
  maps.value_box = describe_pool(p.v, p, p.head_dim_v, block, &maps.values);
  maps.both = maps.key_box && maps.value_box;
  return maps;
}

}  // namespace chunkattn::sm90
