#include "checks.h"

#include <stdexcept>
#include <string>

namespace chunkattn {
namespace {

std::string str(int64_t x) { return std::to_string(x); }

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void check_lengths(const AttentionParams& p) {
  const BatchView& batch = p.batch;
  if (batch.cu_seqlens_q[0] != 0) refuse("cu_seqlens_q: expected 0 first, got " + str(batch.cu_seqlens_q[0]));
  const int64_t capacity = batch.table_columns * p.page_size;
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    const int64_t q_len = static_cast<int64_t>(batch.cu_seqlens_q[i + 1]) - batch.cu_seqlens_q[i];
    if (q_len < 0) refuse("cu_seqlens_q: expected non-decreasing sums, got a step of " + str(q_len) + " at request " + str(i));
    if (batch.seq_lens[i] < 0 || batch.seq_lens[i] > capacity)
      refuse("seq_lens: expected lengths in [0, " + str(capacity) + "] (columns of block_table times page size), got " +
             str(batch.seq_lens[i]) + " for request " + str(i));
    if (p.tree_mask && q_len > p.tree_words * 32)
      refuse("tree_mask: expected at least " + str(q_len) + " bits a row for request " + str(i) + ", got " +
             str(p.tree_words * 32));
  }
  const int64_t last = batch.cu_seqlens_q[batch.num_requests];
  if (last > p.num_tokens)
    refuse("cu_seqlens_q: expected at most " + str(p.num_tokens) + " tokens (rows of q), got " + str(last));
}

void check_pages(const AttentionParams& p, const PlanSpec& spec) {
  const BatchView& batch = p.batch;
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    const int64_t q_len = batch.cu_seqlens_q[i + 1] - batch.cu_seqlens_q[i], kv_len = batch.seq_lens[i];
    if (q_len == 0) continue;
    const int64_t begin = first_visible_key(spec, q_len, kv_len) / p.page_size, end = ceil_div(kv_len, p.page_size);
    const int32_t* row = batch.block_table + i * batch.block_table_stride_request;
    for (int64_t column = begin; column < end; ++column) {
      const int64_t page = row[column * batch.block_table_stride_column];
      if (page < 0 || page >= p.num_pages)
        refuse("block_table: expected pages in [0, " + str(p.num_pages) + "), got " + str(page) + " at request " + str(i) +
               ", column " + str(column));
    }
  }
}

}  // namespace

void check_batch(const AttentionParams& p, const PlanSpec& spec) {
  check_lengths(p);
  check_pages(p, spec);
}

void check_plan(const AttentionParams& p, const PlanSpec& spec, const int64_t* words) {
  const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(words);
  if (header.magic != kPlanMagic) refuse("plan: expected the output of plan(), got something else");
  if (header.num_requests != p.batch.num_requests)
    refuse("plan: expected one for " + str(p.batch.num_requests) + " requests, got one for " + str(header.num_requests));
  const int64_t count = 4 * header.num_requests + 3;
  if (header.tables_checksum != static_cast<int64_t>(checksum(0, words + kPlanHeaderWords, count)))
    refuse("plan: expected an unchanged output of plan(), got tables that differ from its header");
  if (header.lengths_checksum != lengths_checksum(p.batch.cu_seqlens_q, p.batch.seq_lens, p.batch.num_requests))
    refuse("plan: expected one made from these cu_seqlens_q and seq_lens, got one made from others");
  const PlanSpec& made = header.spec;
  const auto same = [](const char* what, int64_t wanted, int64_t got) {
    if (wanted != got)
      refuse(std::string("plan: expected one made with ") + what + " = " + str(wanted) + ", got " + str(got));
  };
  same("num_q_heads", spec.num_q_heads, made.num_q_heads);
  same("num_kv_heads", spec.num_kv_heads, made.num_kv_heads);
  same("causal", spec.causal, made.causal);
  same("window[0]", spec.window_left, made.window_left);
  same("window[1]", spec.window_right, made.window_right);
  same("invariant", spec.invariant, made.invariant);
  same("the invariant split length", spec.invariant ? spec.invariant_split : made.invariant_split, made.invariant_split);
  if (made.decode_rows > spec.decode_rows || made.tile_rows > 1 << 16 || made.tile_rows < 1 || made.decode_heads < 1)
    refuse("plan: expected one made for the cpu backend, got one made for another");
}

}  // namespace chunkattn
