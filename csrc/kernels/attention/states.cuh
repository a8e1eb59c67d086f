// What happens to the state of a row: the carry of invariant mode, partial states of splits, their merge, results.
#pragma once
#include "chunkattn/epilogue/output.cuh"
#include "chunkattn/epilogue/partial.cuh"
#include "chunkattn/score/score_mod.cuh"
#include "chunkattn/seq/task.cuh"
#include "chunkattn/softmax/state.cuh"
#include "kernels/attention/params.cuh"

namespace chunkattn {

// Four columns of a row's state.
struct RowPart {
  float max = -INFINITY, sum = 0.0f;
  float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  __device__ static float4 join(const JoinFactors& f, float4 left, float4 right) {
    return make_float4(f.join(left.x, right.x), f.join(left.y, right.y), f.join(left.z, right.z),
                       f.join(left.w, right.w));
  }
  __device__ void join(float right_max, float right_sum, float4 right) {
    const JoinFactors f(max, right_max);
    values = join(f, values, right);
    sum = f.join(sum, right_sum);
    max = f.max;
  }
  __device__ void join(const PartialStates& states, int64_t row, int column) {
    join(states.max[row], states.sum[row], states.values(row, column));
  }
};

// Calls visit(row, column) for every row of the task and every fourth column, a row's columns in neighbouring threads.
template <int kThreads, class Visit>
__device__ inline void for_each_part(const KernelParams& p, const Task& task, int thread, Visit visit) {
  const int parts = static_cast<int>(p.attention.head_dim_v) / 4, count = task.num_rows() * parts;
#pragma unroll 1
  for (int i = thread; i < count; i += kThreads) visit(i / parts, i % parts * 4);
}

// A row's place in out and lse, and what its sums are multiplied by.
template <class Config>
struct ResultRow {
  int64_t token = 0;
  int32_t q_head = 0;
  RowResult result{};

  ResultRow() = default;
  __device__ ResultRow(const KernelParams& p, const Task& task, int row, float max, float sum) {
    const PackedRow packed(task, p.group, task.row_begin + row);
    const KvScale& scale = p.attention.v.scale;
    const float value_scale =
        scale.mode == ScaleMode::kPerTokenHead ? 1.0f / Config::kWeightUnit : constant_scale(scale, task.kv_head);
    token = packed.token(task);
    q_head = packed.q_head;
    result = finish_row(p.attention, q_head, value_scale, max, sum);
  }
  __device__ void store(const KernelParams& p, int column, float4 v) const {
    const float scale = result.scale;
    store_four<Config::kType>(p.attention, token, q_head, column, p.out_aligned,
                              make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
    if (column == 0) store_lse(p.attention, token, q_head, result.lse);
  }
};

// Partial row of the task's row `row` in one of its splits.
__device__ inline int64_t partial_row(const KernelParams& p, const Task& task, int split, int row) {
  const int64_t rows = static_cast<int64_t>(task.q_len) * p.group.value;
  return task.partial_base + (split * p.attention.num_kv_heads + task.kv_head) * rows + task.row_begin + row;
}

// Where the segment that begins at `begin` ends. In invariant mode states are joined at absolute multiples of
// invariant_split keys, whether the item is one such segment or walks many.
__device__ inline int32_t segment_end(const KernelParams& p, const Task& task, int32_t begin) {
  if (!p.attention.invariant) return task.kv_end;
  const int32_t unit = static_cast<int32_t>(p.spec.invariant_split);
  return min((begin / unit + 1) * unit, task.kv_end);
}

// Where the state of all segments up to the one that holds `key` waits: two tiles a CTA, in turn.
template <int kRows>
__device__ inline int64_t carry_row(const KernelParams& p, int32_t key, int row) {
  const int32_t turn = key / static_cast<int32_t>(p.spec.invariant_split) % 2;
  return p.carry_rows + (blockIdx.x * 2 + turn) * static_cast<int64_t>(kRows) + row;
}

// Takes the state of a row over one segment of the keys further: joined with what earlier segments left, it becomes the
// carry, or, after the last segment, the task's partial state or result. kRows: of the tile.
template <class Config, int kRows>
class FinishedSegment {
 public:
  __device__ FinishedSegment(const KernelParams& p, const Task& task, int32_t begin, int row, float max, float sum)
      : factors_(-INFINITY, max), sum_(sum) {
    if (begin > task.kv_begin) {
      carried_ = carry_row<kRows>(p, begin - 1, row);
      factors_ = JoinFactors(p.partials.max[carried_], max);
      sum_ = factors_.join(p.partials.sum[carried_], sum);
    }
    if (segment_end(p, task, begin) < task.kv_end) {
      stored_ = carry_row<kRows>(p, begin, row);
    } else if (task.num_splits > 1) {
      stored_ = partial_row(p, task, task.split, row);
    } else {
      result_ = ResultRow<Config>(p, task, row, factors_.max, sum_);
    }
  }

  // Four columns of the segment's sums of values.
  __device__ void store(const KernelParams& p, int column, float4 values) const {
    if (carried_ >= 0) values = RowPart::join(factors_, p.partials.values(carried_, column), values);
    if (stored_ >= 0) {
      p.partials.store(stored_, column, factors_.max, sum_, values);
    } else {
      result_.store(p, column, values);
    }
  }

 private:
  JoinFactors factors_;
  float sum_;
  int64_t carried_ = -1, stored_ = -1;  // partial rows, or none
  ResultRow<Config> result_;
};

// Joins the states of all splits in their order, so that the bits do not depend on who came last.
template <class Config, int kThreads>
__device__ void merge_splits(const KernelParams& p, const Task& task, int thread) {
  for_each_part<kThreads>(p, task, thread, [&](int row, int column) {
    RowPart part;
#pragma unroll 1
    for (int split = 0; split < task.num_splits; ++split)
      part.join(p.partials, partial_row(p, task, split, row), column);
    ResultRow<Config>(p, task, row, part.max, part.sum).store(p, column, part.values);
  });
}

}  // namespace chunkattn
