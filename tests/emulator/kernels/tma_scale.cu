// A library under the stand-in CUDA runtime: the host code encodes a tensor map and launches; each CTA loads one
// tile by TMA, waits on an mbarrier and writes factor * tile. FAULT plants one mistake.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#ifndef FAULT
#define FAULT 0
#endif
enum { kNone, kNoWait, kNoInitFence, kNoBarrier, kShortExpect };

constexpr int kRows = 16, kCols = 32, kThreads = 128;

__device__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__global__ void __launch_bounds__(kThreads)
    scale_tile(const __grid_constant__ CUtensorMap map, float* out, int rows, int cols, float factor) {
  __shared__ alignas(128) float tile[kRows * kCols];
  __shared__ alignas(8) std::uint64_t full;
  const std::uint32_t barrier = shared_address(&full);
  const int first_col = blockIdx.x * kCols, first_row = blockIdx.y * kRows;

  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
    if (FAULT != kNoInitFence) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (FAULT != kNoBarrier) __syncthreads();
  if (threadIdx.x == 0) {
    const std::uint32_t bytes = sizeof tile / (FAULT == kShortExpect ? 2 : 1);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(tile)),
        "l"(&map), "r"(first_col), "r"(first_row), "r"(barrier)
        : "memory");
  }
  if (FAULT != kNoWait)
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier)
        : "memory");
  for (int k = threadIdx.x; k < kRows * kCols; k += kThreads) {
    const int row = first_row + k / kCols, col = first_col + k % kCols;
    if (row < rows && col < cols) out[row * cols + col] = factor * tile[k];
  }
}

extern "C" int scale(float* in, float* out, int rows, int cols, float factor) {
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult status;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &status) !=
      cudaSuccess)
    return 1;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(symbol);
  CUtensorMap map;
  const cuuint64_t dims[] = {cuuint64_t(cols), cuuint64_t(rows)};
  const cuuint64_t strides[] = {cuuint64_t(cols) * sizeof(float)};
  const cuuint32_t box[] = {kCols, kRows}, element_strides[] = {1, 1};
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, in, dims, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    return 2;
  const dim3 grid((cols + kCols - 1) / kCols, (rows + kRows - 1) / kRows);
  scale_tile<<<grid, kThreads>>>(map, out, rows, cols, factor);
  return cudaGetLastError();
}
