#include "kernels/attention/host_params.h"
#include "kernels/attention_sm80/kernel.cuh"
#include "kernels/library.h"

namespace chunkattn::sm80 {
namespace {

using Variant = Config<static_cast<DType>(CHUNKATTN_DTYPE), static_cast<DType>(CHUNKATTN_KV_DTYPE), CHUNKATTN_HEAD_DIM,
                       CHUNKATTN_HEAD_DIM_V>;
static_assert(CHUNKATTN_TILE_ROWS == Variant::kPrefillRows, "the planner cuts rows into the kernel's tiles");
static_assert(CHUNKATTN_DECODE_ROWS == Variant::kDecodeRows, "the planner's decode class fits the decode tile");
static_assert(CHUNKATTN_CTAS_PER_SM == kCtasPerSm, "the planner's workers are the kernel's CTAs");
static_assert(CHUNKATTN_KV_TILE % Variant::kPrefillBlock == 0 && CHUNKATTN_KV_TILE % Variant::kDecodeBlock == 0,
              "splits begin where blocks of keys begin");

}  // namespace
}  // namespace chunkattn::sm80

CHUNKATTN_EXPORT int32_t chunkattn_attention_sm80(const chunkattn::AttentionParams* p,
                                                  const chunkattn::PlannedStep* step,
                                                  const chunkattn::LaunchContext* context) {
  using namespace chunkattn;
  using namespace chunkattn::sm80;
  const auto stream = static_cast<cudaStream_t>(context->stream);
  if (p->num_tokens == 0) return cudaSuccess;
  const int64_t longest = p->batch.table_columns * p->page_size;
  const WorkspaceLayout layout = workspace_layout(step->spec, p->num_tokens, longest, p->head_dim_v);
  if (step->workspace_bytes < layout.bytes()) return cudaErrorInvalidValue;
  cudaError_t status = cudaMemsetAsync(step->workspace, 0, layout.counters * sizeof(int32_t), stream);
  if (status != cudaSuccess) return status;
  const auto kernel = attention_kernel<Variant>;
  constexpr int kBytes = kSharedBytes<Variant>;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(step->spec.num_workers), kThreads, kBytes, stream>>>(kernel_params(*p, *step, layout));
  return cudaGetLastError();
}
