// Which blocks of keys a row tile walks.
#pragma once
#include "chunkattn/mask/visible.cuh"
#include "chunkattn/seq/task.cuh"
#include "kernels/attention/params.cuh"

namespace chunkattn {

__device__ inline VisibleKeys visible_keys(const KernelParams& p, const Task& task) {
  return VisibleKeys(p.attention, task.kv_len, task.first_new_key(), task.first_token);
}

// Keys of [kv_begin, kv_end) that a task's rows see, in blocks of kBlock that begin at absolute multiples of it.
template <int kBlock>
struct KeyBlocks {
  KeyRange some, every;  // what some row sees, what every row sees
  int32_t first, end;    // numbers of blocks

  __device__ KeyBlocks(const KernelParams& p, const Task& task, int32_t kv_begin, int32_t kv_end) {
    const VisibleKeys visible = visible_keys(p, task);
    const int32_t first_position = PackedRow(task, p.group, task.row_begin).position(task);
    const int32_t last_position = PackedRow(task, p.group, task.row_end - 1).position(task);
    some = visible.of_rows(first_position, last_position);
    some = {max(some.begin, kv_begin), min(some.end, kv_end)};
    every = visible.by_all_rows(first_position, last_position);
    first = some.begin / kBlock;
    end = some.end > some.begin ? (some.end + kBlock - 1) / kBlock : first;
  }

  // Where the blocks from `block` on end that every row sees whole; `block` if it is none of them.
  __device__ int32_t whole_end(int32_t block) const {
    return block * kBlock < every.begin ? block : max(block, min(end, every.end / kBlock));
  }

  // Whether rows differ in which of these keys they see.
  __device__ bool rows_differ(int32_t first_key, int32_t count) const {
    return max(first_key, some.begin) < every.begin || min(first_key + count, some.end) > every.end;
  }
};

}  // namespace chunkattn
