// The query rows of a work item: where they come from and which keys each of them sees.
#pragma once
#include "chunkattn/core/params.h"
#include "chunkattn/sched/work_item.h"
#include "simd.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// A request of the batch, as its rows see it.
struct Request {
  int64_t index, first_token, q_len, kv_len, group;

  Request(const AttentionParams& p, int64_t request)
      : index(request),
        first_token(p.batch.cu_seqlens_q[request]),
        q_len(p.batch.cu_seqlens_q[request + 1] - p.batch.cu_seqlens_q[request]),
        kv_len(p.batch.seq_lens[request]),
        group(p.num_q_heads / p.num_kv_heads) {}

  int64_t first_new_key() const { return kv_len - q_len; }
};

// Keys [begin, end) that a row sees, tree mask aside. Both bounds grow with the row.
struct KeyRange {
  int64_t begin, end;
};

CHUNKATTN_INLINE KeyRange visible_keys(const AttentionParams& p, const Request& request, const WorkItem& item,
                                       int64_t position) {
  int64_t begin = item.kv_begin, end = min_of(item.kv_end, request.kv_len);
  if (p.causal) end = min_of(end, position + 1);
  if (p.window_right >= 0 && p.window_right < request.kv_len + request.q_len)
    end = min_of(end, position + p.window_right + 1);
  if (p.window_left >= 0 && p.window_left < request.kv_len + request.q_len)
    begin = max_of(begin, position - p.window_left);
  return {begin, end};
}

// Which query a packed row is.
struct RowIndex {
  int64_t token, head;  // in the batch; query head

  RowIndex(int64_t token_of_batch, int64_t q_head) : token(token_of_batch), head(q_head) {}
  RowIndex(const Request& request, int64_t kv_head, int64_t row)
      : token(request.first_token + row / request.group), head(kv_head * request.group + row % request.group) {}
};

// Per-row facts of the packed rows of one KV head, in arrays that the lanes load from.
struct Rows {
  int32_t *begin, *end, *position;  // [padded rows]
  int32_t *token, *head;            // [padded rows], see RowIndex
  float* slope;                     // [padded rows], ALiBi; nullptr without

  RowIndex index(int64_t i) const { return {token[i], head[i]}; }

  // Rows past item.row_end repeat the last one, so that a tile's masks need no case for them.
  void fill(const AttentionParams& p, const Request& request, const WorkItem& item, int64_t kv_head,
            int64_t padded_rows) {
    // Counted on, not divided row by row: divisions were 4 % of a 512-token prompt.
    int64_t token_in_request = item.row_begin / request.group, head_in_group = item.row_begin % request.group;
    KeyRange keys = visible_keys(p, request, item, request.first_new_key() + token_in_request);
    for (int64_t i = 0; i < padded_rows; ++i) {
      begin[i] = static_cast<int32_t>(keys.begin);
      end[i] = static_cast<int32_t>(max_of(keys.end, 0));
      position[i] = static_cast<int32_t>(request.first_new_key() + token_in_request);
      token[i] = static_cast<int32_t>(request.first_token + token_in_request);
      head[i] = static_cast<int32_t>(kv_head * request.group + head_in_group);
      if (slope) slope[i] = p.alibi_slopes[request.index * p.alibi_stride_request + head[i] * p.alibi_stride_head];
      if (item.row_begin + i + 1 >= item.row_end) continue;
      if (++head_in_group < request.group) continue;
      head_in_group = 0;
      ++token_in_request;
      keys = visible_keys(p, request, item, request.first_new_key() + token_in_request);
    }
  }
};

constexpr int kPrefetchLocality = 2;  // into L2

// Where key positions of a request lie in a pool: the bytes from the pool's start for head 0, and the token's scale.
struct KeyAddress {
  const PagedPool* pool;
  const int32_t* table;  // the request's row of the block table
  int64_t column_stride, page_size, bytes;

  KeyAddress(const AttentionParams& p, const PagedPool& source, int64_t request, int64_t element_bytes)
      : pool(&source),
        table(p.batch.block_table + request * p.batch.block_table_stride_request),
        column_stride(p.batch.block_table_stride_column),
        page_size(p.page_size),
        bytes(element_bytes) {}

  int64_t page_of(int64_t key) const { return table[key / page_size * column_stride]; }

  // Byte offsets of keys [begin, end); one division a page.
  void offsets(int64_t begin, int64_t end, int64_t* target) const {
    for (int64_t key = begin; key < end;) {
      const int64_t slot = key % page_size, stop = min_of(end, key - slot + page_size);
      int64_t offset = (page_of(key) * pool->stride_page + slot * pool->stride_slot) * bytes;
      for (; key < stop; ++key, offset += pool->stride_slot * bytes) *target++ = offset;
    }
  }

  // Where their scales for head 0 lie, in elements.
  void scale_offsets(int64_t begin, int64_t end, int64_t* target) const {
    const KvScale& scale = pool->scale;
    for (int64_t key = begin; key < end;) {
      const int64_t slot = key % page_size, stop = min_of(end, key - slot + page_size);
      int64_t offset = page_of(key) * scale.stride_page + slot * scale.stride_slot;
      for (; key < stop; ++key, offset += scale.stride_slot) *target++ = offset;
    }
  }

  // Scales per token and head of keys [begin, end).
  void scales(int64_t begin, int64_t end, int64_t head, float* target) const {
    const KvScale& scale = pool->scale;
    for (int64_t key = begin; key < end;) {
      const int64_t slot = key % page_size, stop = min_of(end, key - slot + page_size);
      const float* source =
          scale.data + page_of(key) * scale.stride_page + slot * scale.stride_slot + head * scale.stride_head;
      for (; key < stop; ++key, source += scale.stride_slot) *target++ = *source;
    }
  }
};

// Reads one byte of every line of a row, given by its byte offset for head 0.
CHUNKATTN_INLINE void touch_row(const PagedPool& pool, int64_t offset, int64_t head, int64_t element_bytes,
                                int64_t dim) {
  const char* row = static_cast<const char*>(pool.data) + offset + head * pool.stride_head * element_bytes;
  for (int64_t byte = 0; byte < dim * element_bytes; byte += 64) static_cast<void>(*(volatile const char*)(row + byte));
}

// Asks for one line of each 4 KiB that such rows begin in, so that the address translations are there in time.
CHUNKATTN_INLINE void prefetch_translations(const PagedPool& pool, const int64_t* offsets, int64_t count,
                                            int64_t head_begin, int64_t element_bytes) {
  int64_t held = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t offset = offsets[i] + head_begin * pool.stride_head * element_bytes;
    if (offset >> 12 == held) continue;
    held = offset >> 12;
    __builtin_prefetch(static_cast<const char*>(pool.data) + offset, 0, kPrefetchLocality);
  }
}

// The factor of a scale that does not change from token to token.
CHUNKATTN_INLINE float constant_scale(const KvScale& scale, int64_t kv_head) {
  if (scale.mode == ScaleMode::kPerTensor) return scale.data[0];
  if (scale.mode == ScaleMode::kPerHead) return scale.data[kv_head * scale.stride_head];
  return 1.0f;
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
