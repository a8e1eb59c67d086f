// CUTLASS example 88 (Hopper attention) as a library, one kernel: SCHEDULE, TILE_M, TILE_N, HEAD_DIM, FUSION.
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/kernel_hardware_info.h"

#include "collective/fmha_fusion.hpp"
#include "device/device_universal.hpp"
#include "kernel/fmha_kernel_builder.hpp"

using namespace cute;
using namespace cutlass::fmha::kernel;
using namespace cutlass::fmha::collective;
using namespace cutlass::fmha;

using Element = cutlass::half_t;
using TokenStride = cute::tuple<int, _1, cute::tuple<int, int>>;  // token, 1, (batch, head)
using StrideLse = cute::tuple<_1, cute::tuple<int, int>>;
using TileShape = Shape<Int<TILE_M>, Int<TILE_N>, Int<HEAD_DIM>>;
using Operation = cutlass::device::Universal<
    FmhaBuilder<Element, float, float, TileShape, TokenStride, TokenStride, TokenStride, FUSION, cutlass::gemm::SCHEDULE>::Kernel>;

/// q, o: [batch, heads, q_len, HEAD_DIM]; k, v: [batch, heads, kv_len, HEAD_DIM]; lse: [batch, heads, q_len].
extern "C" int fmha(void* q, void* k, void* v, void* o, float* lse, int batch, int heads, int q_len, int kv_len) {
  const auto stride = [&](int tokens) {
    return make_stride(HEAD_DIM, _1{}, make_stride(heads * tokens * HEAD_DIM, tokens * HEAD_DIM));
  };
  const StrideLse stride_lse = make_stride(_1{}, make_stride(heads * q_len, q_len));
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = 0;
  hardware.sm_count = cutlass::KernelHardwareInfo::query_device_multiprocessor_count(0);
  typename Operation::Arguments arguments{
      cute::make_tuple(batch, heads, q_len, kv_len, HEAD_DIM),
      {static_cast<Element*>(q), stride(q_len), static_cast<Element*>(k), stride(kv_len), static_cast<Element*>(v),
       stride(kv_len)},
      {static_cast<Element*>(o), stride(q_len), lse, stride_lse},
      hardware};
  Operation operation;
  if (operation.can_implement(arguments) != cutlass::Status::kSuccess) return 1;
  if (operation.initialize(arguments, nullptr) != cutlass::Status::kSuccess) return 2;
  if (operation.run() != cutlass::Status::kSuccess) return 3;
  return cudaGetLastError() == cudaSuccess ? 0 : 4;
}
