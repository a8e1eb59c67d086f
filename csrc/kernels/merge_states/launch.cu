#include <algorithm>

#include "kernels/alignment.h"
#include "kernels/library.h"
#include "kernels/merge_states/kernel.cuh"

namespace chunkattn::merge {
namespace {

bool row_is_aligned(const StateView& state, int64_t size) {
  return is_aligned(state.out, kVectorBytes) && is_multiple(state.out_stride_token * size, kVectorBytes) &&
         is_multiple(state.out_stride_head * size, kVectorBytes);
}

template <DType dtype>
int32_t launch(const MergeParams& p, cudaStream_t stream) {
  constexpr int64_t kSize = size_of(dtype);
  constexpr int kWide = kVectorBytes / kSize;
  const bool wide = p.head_dim_v % kWide == 0 && row_is_aligned(p.a, kSize) && row_is_aligned(p.b, kSize) &&
                    row_is_aligned(p.result, kSize);
  const int64_t packs = wide ? p.head_dim_v / kWide : p.head_dim_v, rows = p.num_tokens * p.num_heads;
  int lanes = 1;
  while (lanes < packs && lanes < 32) lanes *= 2;
  const int64_t rows_per_block = kThreads / lanes, blocks = (rows + rows_per_block - 1) / rows_per_block;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (wide)
    merge_kernel<dtype, kWide><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p, lanes);
  else
    merge_kernel<dtype, 1><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p, lanes);
  return cudaGetLastError();
}

}  // namespace
}  // namespace chunkattn::merge

CHUNKATTN_EXPORT int32_t chunkattn_merge_states(const chunkattn::MergeParams* p,
                                                const chunkattn::LaunchContext* context) {
  using namespace chunkattn;
  const auto stream = static_cast<cudaStream_t>(context->stream);
  if (p->num_tokens * p->num_heads == 0) return cudaSuccess;
  switch (p->dtype) {
    case DType::kF32: return merge::launch<DType::kF32>(*p, stream);
    case DType::kF16: return merge::launch<DType::kF16>(*p, stream);
    case DType::kBF16: return merge::launch<DType::kBF16>(*p, stream);
    default: return cudaErrorInvalidValue;
  }
}
