// What happens to staged states: joined over the warps of a decode, taken further, merged.
#pragma once
#include "chunkattn/ptx/atomic.cuh"
#include "kernels/attention/states.cuh"
#include "kernels/attention_sm80/config.h"

namespace chunkattn::sm80 {

// Takes the staged state of the current segment further.
template <class Config, class Geometry>
__device__ void finish(const KernelParams& p, const Task& task, const char* shared) {
  const float* staged = reinterpret_cast<const float*>(shared);
  const float* max = staged + Geometry::kStageRows * Config::kStagePitch;
  const float* sum = max + Geometry::kStageRows;
  for_each_part<kThreads>(p, task, ptx::thread_index(), [&](int row, int column) {
    RowPart part;
#pragma unroll
    for (int slice = 0; slice < Geometry::kSlices; ++slice) {
      const int at = slice * Geometry::kRows + row;
      part.join(max[at], sum[at], *reinterpret_cast<const float4*>(staged + Config::staged(at, column)));
    }
    FinishedSegment<Config, Geometry::kRows>(p, task, task.segment_begin, row, part.max, part.sum)
        .store(p, column, part.values);
  });
}

// Announces a partial state; whoever comes last merges all of them.
template <class Config>
__device__ void merge_if_last(const KernelParams& p, const Task& task, int32_t* shared_arrivals) {
  __syncthreads();  // all threads have stored their part
  if (threadIdx.x == 0) *shared_arrivals = ptx::add_acquire_release(p.arrivals + task.arrival, 1);
  __syncthreads();
  if (*shared_arrivals + 1 != task.num_splits) return;
  merge_splits<Config, kThreads>(p, task, ptx::thread_index());
}

}  // namespace chunkattn::sm80
