// One work item as a CTA sees it: which rows of which request against which keys.
#pragma once
#include <cstdint>

#include "chunkattn/core/divide.h"
#include "chunkattn/core/params.h"
#include "chunkattn/sched/plan.h"

namespace chunkattn {

struct Task {
  int64_t partial_base = 0, arrival = 0;  // see WorkItem
  int32_t request = 0, kv_head = 0;
  int32_t first_token = 0, q_len = 0, kv_len = 0;
  int32_t row_begin = 0, row_end = 0;  // packed rows: token_in_request * group + head_in_group
  int32_t kv_begin = 0, kv_end = 0;    // key positions
  int32_t segment_begin = 0;           // where the part of the keys begins that is being walked
  int32_t split = 0, num_splits = 1;
  bool is_decode = false;

  Task() = default;
  __device__ Task(const WorkItem& item, const BatchView& batch)
      : partial_base(item.partial_base),
        arrival(item.arrival),
        request(static_cast<int32_t>(item.request)),
        kv_head(static_cast<int32_t>(item.kv_head_begin)),
        first_token(batch.cu_seqlens_q[item.request]),
        q_len(batch.cu_seqlens_q[item.request + 1] - first_token),
        kv_len(batch.seq_lens[item.request]),
        row_begin(static_cast<int32_t>(item.row_begin)),
        row_end(static_cast<int32_t>(item.row_end)),
        kv_begin(static_cast<int32_t>(item.kv_begin)),
        kv_end(static_cast<int32_t>(item.kv_end)),
        segment_begin(kv_begin),
        split(static_cast<int32_t>(item.split)),
        num_splits(static_cast<int32_t>(item.num_splits)),
        is_decode(item.is_decode) {}

  __device__ int32_t num_rows() const { return row_end - row_begin; }
  __device__ int32_t first_new_key() const { return kv_len - q_len; }
};

// A packed query row: the token it belongs to and its head.
struct PackedRow {
  int32_t token_in_request, q_head;

  __device__ PackedRow(const Task& task, const Divisor& group, int32_t row)
      : token_in_request(group.quotient(row)),
        q_head(task.kv_head * static_cast<int32_t>(group.value) + group.remainder(row, token_in_request)) {}

  __device__ int32_t position(const Task& task) const { return task.first_new_key() + token_in_request; }
  __device__ int64_t token(const Task& task) const { return static_cast<int64_t>(task.first_token) + token_in_request; }
};

}  // namespace chunkattn
