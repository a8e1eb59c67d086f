// What every kernel library exports besides its launcher. Include it in launch.cu, once.
#pragma once
#include <cuda_runtime.h>

#include "kernels/launch.h"

#define CHUNKATTN_EXPORT extern "C" __attribute__((visibility("default"), used))

CHUNKATTN_EXPORT int64_t chunkattn_abi() { return chunkattn::launch_abi(); }
CHUNKATTN_EXPORT const char* chunkattn_error(int32_t status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}
