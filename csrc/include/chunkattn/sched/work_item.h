// One unit of work of a step: some packed query rows of one request against a range of its keys.
#pragma once
#include <cstdint>

namespace chunkattn {

struct WorkItem {
  int64_t request = 0;
  int64_t kv_head_begin = 0, kv_head_end = 0;  // decode items may span all KV heads of a page
  // Packed rows of one KV head: row = token_in_request * group + head_in_group.
  int64_t row_begin = 0, row_end = 0;
  int64_t kv_begin = 0, kv_end = 0;   // absolute key positions; boundaries are multiples of split_len
  int64_t split = 0, num_splits = 1;  // num_splits > 1: the item leaves a partial state
  int64_t partial_base = 0;           // first partial row of the request
  int64_t arrival = 0;                // index of the arrival counter of (rows, heads)
  bool is_decode = false;             // few packed rows
};

}  // namespace chunkattn
