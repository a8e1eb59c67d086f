// The launch of an attention kernel, from the parameters of its launcher. On the host.
#pragma once
#include <cuda_runtime.h>

#include <cstdlib>
#include <initializer_list>

#include "kernels/alignment.h"
#include "kernels/attention/params.cuh"
#include "kernels/launch.h"

namespace chunkattn {

// Of rows of `element_bytes` elements at these strides.
inline Access access_of(const void* data, int64_t element_bytes, std::initializer_list<int64_t> strides) {
  for (const Access access : {Access::k16, Access::k8}) {
    const int64_t unit = static_cast<int64_t>(access);
    bool fits = is_aligned(data, unit);
    for (const int64_t stride : strides) fits = fits && is_multiple(stride * element_bytes, unit);
    if (fits) return access;
  }
  return Access::kElements;
}

inline Access access_of(const PagedPool& pool) {
  return access_of(pool.data, size_of(pool.dtype), {pool.stride_page, pool.stride_slot, pool.stride_head});
}

// See PagedLoader: a power of two that divides the page size.
inline int32_t neighbour_rows(const AttentionParams& p, Access key_access, Access value_access) {
  constexpr int32_t kMost = 32;
  if (key_access != Access::k16 || value_access != Access::k16) return 1;
  for (const PagedPool* pool : {&p.k, &p.v})
    if (std::abs(pool->stride_slot) >= (int64_t{1} << 31) / (kMost * size_of(pool->dtype))) return 1;
  int32_t rows = kMost;
  while (p.page_size % rows != 0) rows /= 2;
  return rows;
}

inline KernelParams kernel_params(const AttentionParams& p, const PlannedStep& step, const WorkspaceLayout& layout) {
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
  k.neighbour_rows = neighbour_rows(p, k.key_access, k.value_access);
  k.out_aligned = access_of(p.out, size_of(p.dtype), {p.out_stride_token, p.out_stride_head}) != Access::kElements;
  return k;
}

// What a kernel's instantiation is launched with.
struct LaunchShape {
  int64_t ctas = 0;
  int threads = 0, shared_bytes = 0;
};

// Zeroes the workspace's counters and enqueues a kernel that takes KernelParams and `more`.
template <class... More>
cudaError_t launch_attention(void (*kernel)(KernelParams, More...), const LaunchShape& shape, const AttentionParams& p,
                             const PlannedStep& step, const LaunchContext& context, const More&... more) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (p.num_tokens == 0) return cudaSuccess;
  const int64_t longest = p.batch.table_columns * p.page_size;
  const WorkspaceLayout layout = workspace_layout(step.spec, p.num_tokens, longest, p.head_dim_v);
  if (step.workspace_bytes < layout.bytes()) return cudaErrorInvalidValue;
  cudaError_t status = cudaMemsetAsync(step.workspace, 0, layout.counters * sizeof(int32_t), stream);
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(shape.ctas), shape.threads, shape.shared_bytes, stream>>>(
      kernel_params(p, step, layout), more...);
  return cudaGetLastError();
}

}  // namespace chunkattn
