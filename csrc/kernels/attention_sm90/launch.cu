#include <algorithm>

#include "kernels/attention/host_params.h"
#include "kernels/attention_sm90/kernel.cuh"
#include "kernels/library.h"

namespace chunkattn::sm90 {
namespace {

using Variant = Config<static_cast<DType>(CHUNKATTN_DTYPE), static_cast<DType>(CHUNKATTN_KV_DTYPE), CHUNKATTN_HEAD_DIM,
                       CHUNKATTN_HEAD_DIM_V>;
constexpr int kBytes = sizeof(SharedMemory<Variant>);
static_assert(kBytes <= kSharedPerCta, "a CTA fits an SM");
static_assert(CHUNKATTN_TILE_ROWS == Variant::kRows, "the planner cuts rows into the kernel's tiles");
static_assert(CHUNKATTN_DECODE_ROWS == Variant::kDecodeRows, "the planner's decode class fits the decode tile");
static_assert(CHUNKATTN_KV_TILE % Variant::kBlock == 0, "splits begin where blocks of keys begin");

}  // namespace
}  // namespace chunkattn::sm90

CHUNKATTN_EXPORT int32_t chunkattn_attention_sm90(const chunkattn::AttentionParams* p,
                                                  const chunkattn::PlannedStep* step,
                                                  const chunkattn::LaunchContext* context) {
  using namespace chunkattn;
  using namespace chunkattn::sm90;
  const auto stream = static_cast<cudaStream_t>(context->stream);
  if (p->num_tokens == 0) return cudaSuccess;
  const int64_t longest = p->batch.table_columns * p->page_size;
  const WorkspaceLayout layout = workspace_layout(step->spec, p->num_tokens, longest, p->head_dim_v);
  if (step->workspace_bytes < layout.bytes()) return cudaErrorInvalidValue;
  cudaError_t status = cudaMemsetAsync(step->workspace, 0, layout.counters * sizeof(int32_t), stream);
  if (status != cudaSuccess) return status;
  const auto kernel = attention_kernel<Variant>;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  // One CTA an SM does the work of all the planner's workers of that SM.
  const int64_t ctas = std::min<int64_t>(context->num_sms, step->spec.num_workers);
  kernel<<<static_cast<unsigned>(ctas), kThreads, kBytes, stream>>>(kernel_params(*p, *step, layout),
                                                                    tensor_maps(*p, Variant::kBlock));
  return cudaGetLastError();
}
