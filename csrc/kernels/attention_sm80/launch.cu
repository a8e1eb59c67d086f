#include <algorithm>

#include "kernels/alignment.h"
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

// Of rows of `element_bytes` elements at these strides.
Access access_of(const void* data, int64_t element_bytes, std::initializer_list<int64_t> strides) {
  for (const Access access : {Access::k16, Access::k8}) {
    const int64_t unit = static_cast<int64_t>(access);
    bool fits = is_aligned(data, unit);
    for (const int64_t stride : strides) fits = fits && is_multiple(stride * element_bytes, unit);
    if (fits) return access;
  }
  return Access::kElements;
}

Access access_of(const PagedPool& pool) {
  return access_of(pool.data, size_of(pool.dtype), {pool.stride_page, pool.stride_slot, pool.stride_head});
}

KernelParams kernel_params(const AttentionParams& p, const PlannedStep& step, const WorkspaceLayout& layout) {
  KernelParams k;
  k.attention = p;
  k.spec = step.spec;
  k.plan = step.plan;
  char* workspace = static_cast<char*>(step.workspace);
  k.queue_heads = reinterpret_cast<int32_t*>(workspace);
  k.arrivals = k.queue_heads + WorkspaceLayout::kQueueHeads;
  k.partials = {reinterpret_cast<float*>(workspace + layout.out_offset()),
                reinterpret_cast<float*>(workspace + layout.max_offset()),
                reinterpret_cast<float*>(workspace + layout.sum_offset()), static_cast<int32_t>(p.head_dim_v)};
  k.carry_rows = layout.carry_begin();
  k.group = Divisor(p.group());
  k.page_size = Divisor(p.page_size);
  k.query_access = access_of(p.q, size_of(p.dtype), {p.q_stride_token, p.q_stride_head});
  k.key_access = access_of(p.k);
  k.value_access = access_of(p.v);
  k.out_aligned = access_of(p.out, size_of(p.dtype), {p.out_stride_token, p.out_stride_head}) != Access::kElements;
  // Half of the CTAs: block b and block b + SMs share an SM, so that every SM has one of each kind.
  k.decode_first = static_cast<int32_t>(step.spec.num_workers / 2);
  return k;
}

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
