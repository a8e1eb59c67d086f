// What happens to staged states: results, partial states of splits, the carry of invariant mode, merges.
#pragma once
#include "chunkattn/epilogue/output.cuh"
#include "chunkattn/epilogue/partial.cuh"
#include "chunkattn/ptx/atomic.cuh"
#include "chunkattn/score/score_mod.cuh"
#include "chunkattn/seq/task.cuh"
#include "chunkattn/softmax/state.cuh"
#include "kernels/attention_sm80/config.h"
#include "kernels/attention_sm80/params.cuh"

namespace chunkattn::sm80 {

// Four columns of a row's state.
struct RowPart {
  float max = -INFINITY, sum = 0.0f;
  float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  __device__ void join(float right_max, float right_sum, float4 right) {
    const JoinFactors f(max, right_max);
    values = make_float4(f.join(values.x, right.x), f.join(values.y, right.y), f.join(values.z, right.z),
                         f.join(values.w, right.w));
    sum = f.join(sum, right_sum);
    max = f.max;
  }
  __device__ void join(const PartialStates& states, int64_t row, int column) {
    join(states.max[row], states.sum[row], states.values(row, column));
  }
};

// Calls visit(row, column) for every row of the task and every fourth column, a row's columns in neighbouring threads.
template <class Visit>
__device__ inline void for_each_part(const KernelParams& p, const Task& task, Visit visit) {
  const int parts = static_cast<int>(p.attention.head_dim_v) / 4, count = task.num_rows() * parts;
#pragma unroll 1
  for (int i = ptx::thread_index(); i < count; i += kThreads) visit(i / parts, i % parts * 4);
}

template <class Config>
__device__ inline void store_result(const KernelParams& p, const Task& task, int row, int column, const RowPart& part) {
  const PackedRow packed(task, p.group, task.row_begin + row);
  const KvScale& scale = p.attention.v.scale;
  const float value_scale =
      scale.mode == ScaleMode::kPerTokenHead ? 1.0f / Config::kWeightUnit : constant_scale(scale, task.kv_head);
  const RowResult result = finish_row(p.attention, packed.q_head, value_scale, part.max, part.sum);
  const float4 v = part.values;
  store_four<Config::kType>(
      p.attention, packed.token(task), packed.q_head, column, p.out_aligned,
      make_float4(v.x * result.scale, v.y * result.scale, v.z * result.scale, v.w * result.scale));
  if (column == 0) store_lse(p.attention, packed.token(task), packed.q_head, result.lse);
}

// Partial row of the task's row `row` in one of its splits.
__device__ inline int64_t partial_row(const KernelParams& p, const Task& task, int split, int row) {
  const int64_t rows = static_cast<int64_t>(task.q_len) * p.group.value;
  return task.partial_base + (split * p.attention.num_kv_heads + task.kv_head) * rows + task.row_begin + row;
}

// Where the task's current segment ends.
__device__ inline int32_t segment_end(const KernelParams& p, const Task& task) {
  if (!p.attention.invariant) return task.kv_end;
  const int32_t unit = static_cast<int32_t>(p.spec.invariant_split);
  return min((task.segment_begin / unit + 1) * unit, task.kv_end);
}

// Where the state of all segments up to the one that holds `key` waits: two tiles a CTA, in turn.
template <class Geometry>
__device__ inline int64_t carry_row(const KernelParams& p, int32_t key, int row) {
  const int32_t turn = key / static_cast<int32_t>(p.spec.invariant_split) % 2;
  return p.carry_rows + (blockIdx.x * 2 + turn) * static_cast<int64_t>(Geometry::kRows) + row;
}

// Takes the staged state of the current segment further: joined with what earlier segments left, it becomes the carry,
// or, after the last segment, the task's partial state or result.
template <class Config, class Geometry>
__device__ void finish(const KernelParams& p, const Task& task, const char* shared) {
  const float* staged = reinterpret_cast<const float*>(shared);
  const float* max = staged + Geometry::kStageRows * Config::kStagePitch;
  const float* sum = max + Geometry::kStageRows;
  for_each_part(p, task, [&](int row, int column) {
    RowPart part;
    if (task.segment_begin > task.kv_begin)
      part.join(p.partials, carry_row<Geometry>(p, task.segment_begin - 1, row), column);
#pragma unroll
    for (int slice = 0; slice < Geometry::kSlices; ++slice) {
      const int at = slice * Geometry::kRows + row;
      part.join(max[at], sum[at], *reinterpret_cast<const float4*>(staged + at * Config::kStagePitch + column));
    }
    if (segment_end(p, task) < task.kv_end) {
      p.partials.store(carry_row<Geometry>(p, task.segment_begin, row), column, part.max, part.sum, part.values);
    } else if (task.num_splits > 1) {
      p.partials.store(partial_row(p, task, task.split, row), column, part.max, part.sum, part.values);
    } else {
      store_result<Config>(p, task, row, column, part);
    }
  });
}

// Announces a partial state. Whoever comes last joins the states of all splits, in their order, so that the bits do not
// depend on who that is.
template <class Config>
__device__ void merge_if_last(const KernelParams& p, const Task& task, int32_t* shared_arrivals) {
  __syncthreads();  // all threads have stored their part
  if (threadIdx.x == 0) *shared_arrivals = ptx::add_acquire_release(p.arrivals + task.arrival, 1);
  __syncthreads();
  if (*shared_arrivals + 1 != task.num_splits) return;
  for_each_part(p, task, [&](int row, int column) {
    RowPart part;
#pragma unroll 1
    for (int split = 0; split < task.num_splits; ++split)
      part.join(p.partials, partial_row(p, task, split, row), column);
    store_result<Config>(p, task, row, column, part);
  });
}

}  // namespace chunkattn::sm80
