// cuTensorMapEncodeTiled of the stand-in CUDA runtime.
#pragma once
#include <cuda.h>

#include <cstring>

#include "tensor_map.h"

namespace ptxemu {

inline std::uint8_t swizzle_of(CUtensorMapSwizzle mode) {
  switch (mode) {
    case CU_TENSOR_MAP_SWIZZLE_128B: return kSwizzle128B;
    case CU_TENSOR_MAP_SWIZZLE_64B: return kSwizzle64B;
    case CU_TENSOR_MAP_SWIZZLE_32B: return kSwizzle32B;
    default: return kSwizzleNone;
  }
}

inline CUresult encode_tiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
                             const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                             const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > 5 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return CUDA_ERROR_INVALID_VALUE;
  TensorMap map = {};
  map.magic = kTensorMapMagic;
  map.address = reinterpret_cast<std::uint64_t>(address);
  map.rank = std::uint8_t(rank);
  map.element_type = std::uint8_t(type);
  map.swizzle = swizzle_of(swizzle);
  map.fill_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  for (unsigned k = 0; k < rank; k++) {
    if (dims[k] > 0xffffffffull || box[k] > 256) return CUDA_ERROR_INVALID_VALUE;
    map.dim[k] = std::uint32_t(dims[k]);
    map.box[k] = std::uint16_t(box[k]);
    map.element_stride[k] = std::uint16_t(element_strides[k]);
    if (k > 0) map.stride[k - 1] = strides[k - 1];
  }
  if (tensor_map_error(map)) return CUDA_ERROR_INVALID_VALUE;
  static_assert(sizeof(CUtensorMap) == kTensorMapBytes);
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace ptxemu
