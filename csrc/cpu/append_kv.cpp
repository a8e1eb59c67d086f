#include "append_kv.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "checks.h"
#include "rows.h"

namespace chunkattn {
namespace {

constexpr int64_t kBytesPerThread = 64 * 1024;  // less work than this is not worth waking a thread

struct Token {
  int64_t page = -1, offset = 0;  // page -1: not written
  int64_t position = -1;          // -1: not rotated
};

int64_t read_slot(const AppendParams& p, int64_t token) {
  return p.slot_mapping_is_64 ? static_cast<const int64_t*>(p.slot_mapping)[token * p.slot_stride]
                              : static_cast<const int32_t*>(p.slot_mapping)[token * p.slot_stride];
}

void find_slots(const AppendParams& p, std::vector<Token>& tokens) {
  if (p.slot_mapping) {
    for (int64_t t = 0; t < p.num_slots; ++t) {
      const int64_t slot = read_slot(p, t);
      if (slot < -1 || slot >= p.num_pages * p.page_size)
        refuse("slot_mapping: expected -1 or " + pool_ids(p.num_pages * p.page_size, "slot") + ", got " +
               std::to_string(slot) + " for token " + std::to_string(t));
      if (slot >= 0) tokens[t].page = slot / p.page_size, tokens[t].offset = slot % p.page_size;
    }
    return;
  }
  check_appended(p.batch);
  // Only the pages written to are looked at: earlier ones may have left a sliding window.
  check_pages(p.batch, p.num_pages, p.page_size, 0);
  for (int64_t i = 0; i < p.batch.num_requests; ++i) {
    const int64_t begin = p.batch.cu_seqlens_q[i], end = p.batch.cu_seqlens_q[i + 1];
    const int32_t* row = p.batch.block_table + i * p.batch.block_table_stride_request;
    int64_t position = p.batch.seq_lens[i] - (end - begin);
    for (int64_t t = begin; t < end; ++t, ++position) {
      tokens[t].page = row[position / p.page_size * p.batch.block_table_stride_column];
      tokens[t].offset = position % p.page_size;
    }
  }
}

void find_positions(const AppendParams& p, std::vector<Token>& tokens) {
  if (!p.rope.positions) check_appended(p.batch);
  for (int64_t i = 0; i < p.batch.num_requests; ++i) {
    const int64_t begin = p.batch.cu_seqlens_q[i], end = p.batch.cu_seqlens_q[i + 1];
    for (int64_t t = begin; t < end; ++t) {
      if (tokens[t].page < 0) continue;  // skipped by slot_mapping; its position may be garbage
      const int64_t position = p.rope.positions ? p.rope.positions[t] : p.batch.seq_lens[i] - end + t;
      if (position < 0 || position >= p.rope.num_positions)
        refuse("rope.cos: expected a row for position " + std::to_string(position) + " of token " + std::to_string(t) +
               ", got " + std::to_string(p.rope.num_positions) + " rows");
      tokens[t].position = position;
    }
  }
}

// The scale of one row: read, or computed from the row and written.
float row_scale(const PagedPool& pool, const Token& token, int64_t head, const float* values, int64_t dim) {
  const KvScale& scale = pool.scale;
  switch (scale.mode) {
    case ScaleMode::kNone: return 1.0f;
    case ScaleMode::kPerTensor: return *scale.data;
    case ScaleMode::kPerHead: return scale.data[head * scale.stride_head];
    case ScaleMode::kPerTokenHead: break;
  }
  float amax = 0.0f;
  for (int64_t i = 0; i < dim; ++i) {
    const float magnitude = std::fabs(values[i]);
    amax = magnitude > amax ? magnitude : amax;  // a NaN does not spoil its neighbours
  }
  const float factor = amax == 0.0f ? 1.0f : amax / largest_value(pool.dtype);
  scale.data[token.page * scale.stride_page + token.offset * scale.stride_slot + head * scale.stride_head] = factor;
  return factor;
}

void* row_of(const PagedPool& pool, const Token& token, int64_t head) {
  const int64_t index = token.page * pool.stride_page + token.offset * pool.stride_slot + head * pool.stride_head;
  return static_cast<char*>(pool.data) + index * size_of(pool.dtype);
}

void write_row(const AppendParams& p, const PagedPool& pool, const Token& token, int64_t head, const void* source,
               int64_t dim, bool rotated) {
  void* target = row_of(pool, token, head);
  const bool rotate = rotated && token.position >= 0;
  if (!rotate && pool.dtype == p.dtype) {
    std::memcpy(target, source, dim * size_of(p.dtype));
    return;
  }
  float values[kMaxHeadDim];
  load_row(p.dtype, source, values, dim);
  if (rotate) {
    rotate_row(values, p.rope.cos + token.position * p.rope.stride_position,
               p.rope.sin + token.position * p.rope.stride_position, p.rope.rotary_dim / 2, p.rope.interleaved);
    // Rounded to the dtype of k first, as a separate rotation would be.
    if (pool.dtype != p.dtype && p.dtype != DType::kF32) {
      alignas(64) char rounded[kMaxHeadDim * sizeof(float)];
      store_row(p.dtype, values, rounded, dim);
      load_row(p.dtype, rounded, values, dim);
    }
  }
  if (pool.dtype != p.dtype) {
    const float scale = row_scale(pool, token, head, values, dim);
    if (scale != 1.0f)
      for (int64_t i = 0; i < dim; ++i) values[i] /= scale;
  }
  store_row(pool.dtype, values, target, dim);
}

// The rows of all heads of one token.
void write_rows(const AppendParams& p, const PagedPool& pool, const Token& token, const void* source,
                int64_t stride_head, int64_t dim, bool rotated) {
  const int64_t size = size_of(p.dtype);
  const bool as_they_are = pool.dtype == p.dtype && !(rotated && token.position >= 0);
  if (as_they_are && stride_head == dim && pool.stride_head == dim) {
    std::memcpy(row_of(pool, token, 0), source, p.num_kv_heads * dim * size);  // they lie together on both sides
    return;
  }
  for (int64_t h = 0; h < p.num_kv_heads; ++h)
    write_row(p, pool, token, h, static_cast<const char*>(source) + h * stride_head * size, dim, rotated);
}

void append_token(const AppendParams& p, const Token& token, int64_t t) {
  const int64_t size = size_of(p.dtype);
  if (token.page >= 0) {
    const char* k = static_cast<const char*>(p.k) + t * p.k_stride_token * size;
    const char* v = static_cast<const char*>(p.v) + t * p.v_stride_token * size;
    write_rows(p, p.k_pool, token, k, p.k_stride_head, p.head_dim, p.rope.cos != nullptr);
    write_rows(p, p.v_pool, token, v, p.v_stride_head, p.head_dim_v, false);
  }
  if (!p.q || token.position < 0) return;
  const float* cos = p.rope.cos + token.position * p.rope.stride_position;
  const float* sin = p.rope.sin + token.position * p.rope.stride_position;
  for (int64_t h = 0; h < p.num_q_heads; ++h) {
    char* q = static_cast<char*>(p.q) + (t * p.q_stride_token + h * p.q_stride_head) * size;
    float values[kMaxHeadDim];
    load_row(p.dtype, q, values, p.rope.rotary_dim);
    rotate_row(values, cos, sin, p.rope.rotary_dim / 2, p.rope.interleaved);
    store_row(p.dtype, values, q, p.rope.rotary_dim);
  }
}

}  // namespace

void append_kv(const AppendParams& p, int num_threads) {
  check_lengths(p.batch, p.num_tokens, "k");
  check_scale("k_scale", p.k_pool.scale, p.num_kv_heads);
  check_scale("v_scale", p.v_pool.scale, p.num_kv_heads);
  static thread_local std::vector<Token> tokens;
  // Tokens past the last request and past slot_mapping are not looked at, however many there are.
  const int64_t last = p.batch.cu_seqlens_q[p.batch.num_requests];
  const int64_t num_tokens = p.slot_mapping && p.num_slots > last ? p.num_slots : last;
  tokens.assign(num_tokens, Token{});
  find_slots(p, tokens);
  if (p.rope.cos) find_positions(p, tokens);
  const Token* found = tokens.data();
  const int64_t heads = p.num_kv_heads * 2 + (p.q ? p.num_q_heads : 0);
  const int64_t bytes = num_tokens * heads * p.head_dim * size_of(p.dtype);
  const int64_t useful = bytes / kBytesPerThread + 1;
  const int threads = static_cast<int>(useful < num_threads ? useful : num_threads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t t = 0; t < num_tokens; ++t) append_token(p, found[t], t);
}

}  // namespace chunkattn
