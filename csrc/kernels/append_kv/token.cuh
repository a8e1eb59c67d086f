// Where one token goes, and its rotary position.
#pragma once
#include <cstdint>

#include "chunkattn/core/params.h"

namespace chunkattn::append {

struct Token {
  int64_t page = -1, offset = 0;  // page -1: not written
  int64_t position = -1;          // -1: not rotated
};

// The request of a token, num_requests for a padding token. A whole warp asks: 32 probes a round, so 2 rounds for a
// thousand requests where a bisection would wait for memory ten times.
__device__ inline int64_t find_request(const BatchView& batch, int64_t token, int lane) {
  int64_t low = 0, high = batch.num_requests + 1;  // the first prefix sum above the token lies in [low, high]
  while (low < high) {
    const int64_t step = (high - low + 31) / 32, probe = low + (lane + 1) * step - 1;
    const bool below = probe < high && batch.cu_seqlens_q[probe] <= token;
    const int passed = __popc(__ballot_sync(0xffffffff, below));
    const int64_t next = low + (passed + 1) * step - 1;
    low += passed * step;
    high = next < high ? next : high;
  }
  return low - 1;
}

__device__ inline int64_t read_slot(const AppendParams& p, int64_t token) {
  return p.slot_mapping_is_64 ? static_cast<const int64_t*>(p.slot_mapping)[token * p.slot_stride]
                              : static_cast<const int32_t*>(p.slot_mapping)[token * p.slot_stride];
}

// Asked by a whole warp; the answer is lane 0's. Whatever lies outside the pool or the tables is left alone: contents
// are checked in debug mode, before the launch.
__device__ inline Token find_token(const AppendParams& p, int64_t t, int lane) {
  const bool derived_position = p.rope.cos && !p.rope.positions;
  int64_t position = -1, request = p.batch.num_requests;
  if (!p.slot_mapping || derived_position) {
    request = find_request(p.batch, t, lane);
    if (request < p.batch.num_requests && lane == 0)
      position = p.batch.seq_lens[request] - static_cast<int64_t>(p.batch.cu_seqlens_q[request + 1]) + t;
  }
  Token token;
  if (lane != 0) return token;
  if (p.slot_mapping) {
    const int64_t slot = t < p.num_slots ? read_slot(p, t) : -1;
    if (slot >= 0 && slot < p.num_pages * p.page_size)
      token.page = slot / p.page_size, token.offset = slot % p.page_size;
  } else if (position >= 0 && position < p.batch.table_columns * p.page_size) {
    const int64_t column = position / p.page_size;
    const int64_t page =
        p.batch.block_table[request * p.batch.block_table_stride_request + column * p.batch.block_table_stride_column];
    if (page >= 0 && page < p.num_pages) token.page = page, token.offset = position - column * p.page_size;
  }
  if (!p.rope.cos || token.page < 0) return token;
  if (p.rope.positions) position = t < p.batch.cu_seqlens_q[p.batch.num_requests] ? p.rope.positions[t] : -1;
  if (position >= 0 && position < p.rope.num_positions) token.position = position;
  return token;
}

}  // namespace chunkattn::append
