// Checks of what index tensors hold; all run before anything is written. Each failure is one sentence.
#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "chunkattn/core/params.h"

namespace chunkattn {

[[noreturn]] inline void refuse(const std::string& message) { throw std::invalid_argument(message); }

// Prefix sums must start at 0, rise, and stay within the tokens; KV lengths must not be negative.
inline void check_lengths(const BatchView& batch, int64_t num_tokens) {
  const int32_t* cu = batch.cu_seqlens_q;
  if (cu[0] != 0) refuse("cu_seqlens_q: expected 0 first, got " + std::to_string(cu[0]));
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    if (cu[i + 1] < cu[i])
      refuse("cu_seqlens_q: expected rising prefix sums, got " + std::to_string(cu[i]) + " then " +
             std::to_string(cu[i + 1]) + " for request " + std::to_string(i));
    if (batch.seq_lens[i] < 0)
      refuse("seq_lens: expected lengths >= 0, got " + std::to_string(batch.seq_lens[i]) + " for request " +
             std::to_string(i));
  }
  if (cu[batch.num_requests] > num_tokens)
    refuse("cu_seqlens_q: expected at most " + std::to_string(num_tokens) + " tokens (T of q), got " +
           std::to_string(cu[batch.num_requests]));
}

// Page ids of every position that some row can see must lie in the pool; other columns may hold anything.
inline void check_pages(const BatchView& batch, int64_t num_pages, int64_t page_size, int64_t window_left) {
  const int64_t capacity = batch.table_columns * page_size;
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    const int64_t q_len = batch.cu_seqlens_q[i + 1] - batch.cu_seqlens_q[i], kv_len = batch.seq_lens[i];
    if (q_len == 0 || kv_len == 0) continue;
    if (kv_len > capacity)
      refuse("seq_lens: expected at most " + std::to_string(capacity) + " (M·P of block_table), got " +
             std::to_string(kv_len) + " for request " + std::to_string(i));
    const int64_t first = window_left < 0 ? 0 : std::max<int64_t>(0, kv_len - q_len - window_left);
    const int32_t* row = batch.block_table + i * batch.block_table_stride_request;
    for (int64_t c = first / page_size; c < (kv_len + page_size - 1) / page_size; ++c) {
      const int64_t page = row[c * batch.block_table_stride_column];
      if (page < 0 || page >= num_pages)
        refuse("block_table: expected a page id from 0 to " + std::to_string(num_pages - 1) + ", got " +
               std::to_string(page) + " for request " + std::to_string(i) + ", column " + std::to_string(c));
    }
  }
}

// A tree mask must have a bit for every new token of the longest request.
inline void check_tree(const BatchView& batch, int64_t words) {
  int64_t longest = 0;
  for (int64_t i = 0; i < batch.num_requests; ++i)
    longest = std::max<int64_t>(longest, batch.cu_seqlens_q[i + 1] - batch.cu_seqlens_q[i]);
  if (words * 32 < longest)
    refuse("tree_mask: expected at least " + std::to_string((longest + 31) / 32) + " words for " +
           std::to_string(longest) + " new tokens, got " + std::to_string(words));
}

// Appended tokens must be counted in the KV length.
inline void check_appended(const BatchView& batch) {
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    const int64_t q_len = batch.cu_seqlens_q[i + 1] - batch.cu_seqlens_q[i];
    if (batch.seq_lens[i] < q_len)
      refuse("seq_lens: expected at least the query length " + std::to_string(q_len) + ", got " +
             std::to_string(batch.seq_lens[i]) + " for request " + std::to_string(i) +
             " (lengths include the tokens being appended)");
  }
}

}  // namespace chunkattn
