#include "checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "settings.h"

namespace chunkattn {
namespace {

std::string str(int64_t x) { return std::to_string(x); }

int64_t q_len_of(const BatchView& batch, int64_t request) {
  return static_cast<int64_t>(batch.cu_seqlens_q[request + 1]) - batch.cu_seqlens_q[request];
}

// A tree mask has a bit for every new token of the longest request.
void check_tree(const BatchView& batch, int64_t words) {
  int64_t longest = 0;
  for (int64_t i = 0; i < batch.num_requests; ++i) longest = std::max(longest, q_len_of(batch, i));
  if (words * 32 < longest)
    refuse("tree_mask: expected at least " + str(ceil_div(longest, 32)) + " words for " + str(longest) +
           " new tokens, got " + str(words));
}

}  // namespace

void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string pool_ids(int64_t count, const std::string& noun) {
  return count > 0 ? "a " + noun + " from 0 to " + str(count - 1) : "no " + noun + ", since the pool has no pages";
}

void check_lengths(const BatchView& batch, int64_t num_tokens, const char* tokens) {
  const int32_t* cu = batch.cu_seqlens_q;
  if (cu[0] != 0) refuse("cu_seqlens_q: expected 0 first, got " + str(cu[0]));
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    if (cu[i + 1] < cu[i])
      refuse("cu_seqlens_q: expected rising prefix sums, got " + str(cu[i]) + " then " + str(cu[i + 1]) +
             " for request " + str(i));
    if (batch.seq_lens[i] < 0)
      refuse("seq_lens: expected lengths >= 0, got " + str(batch.seq_lens[i]) + " for request " + str(i));
  }
  const int64_t last = cu[batch.num_requests];
  if (last > num_tokens)
    refuse("cu_seqlens_q: expected at most " + str(num_tokens) + " tokens (T of " + tokens + "), got " + str(last));
}

void check_pages(const BatchView& batch, int64_t num_pages, int64_t page_size, int64_t window_left) {
  const int64_t capacity = batch.table_columns * page_size;
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    const int64_t q_len = q_len_of(batch, i), kv_len = batch.seq_lens[i];
    if (q_len == 0) continue;
    if (kv_len > capacity)
      refuse("seq_lens: expected at most " + str(capacity) + " (M·P of block_table), got " + str(kv_len) +
             " for request " + str(i));
    const int64_t first = window_left < 0 ? 0 : std::max<int64_t>(0, kv_len - q_len - window_left);
    const int32_t* row = batch.block_table + i * batch.block_table_stride_request;
    for (int64_t column = first / page_size; column < ceil_div(kv_len, page_size); ++column) {
      const int64_t page = row[column * batch.block_table_stride_column];
      if (page < 0 || page >= num_pages)
        refuse("block_table: expected " + pool_ids(num_pages, "page id") + ", got " + str(page) + " for request " +
               str(i) + ", column " + str(column));
    }
  }
}

void check_appended(const BatchView& batch) {
  for (int64_t i = 0; i < batch.num_requests; ++i) {
    const int64_t q_len = q_len_of(batch, i);
    if (batch.seq_lens[i] < q_len)
      refuse("seq_lens: expected at least the query length " + str(q_len) + ", got " + str(batch.seq_lens[i]) +
             " for request " + str(i) + " (lengths include the tokens being appended)");
  }
}

void check_scale(const char* arg, const KvScale& scale, int64_t num_heads) {
  const bool one = scale.mode == ScaleMode::kPerTensor;
  if (!one && scale.mode != ScaleMode::kPerHead) return;
  for (int64_t head = 0; head < (one ? 1 : num_heads); ++head) {
    const float value = scale.data[head * scale.stride_head];
    if (value > 0 && std::isfinite(value)) continue;
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    refuse(std::string(arg) + ": expected finite numbers above 0, got " + text + (one ? "" : " for head " + str(head)));
  }
}

void check_batch(const AttentionParams& p) {
  check_lengths(p.batch, p.num_tokens);
  check_scale("k_scale", p.k.scale, p.num_kv_heads);
  check_scale("v_scale", p.v.scale, p.num_kv_heads);
  check_pages(p.batch, p.num_pages, p.page_size, p.window_left);
  if (p.tree_mask) check_tree(p.batch, p.tree_words);
}

void check_plan(const AttentionParams& p, const PlanSpec& spec, const int64_t* words) {
  const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(words);
  if (header.magic != kPlanMagic) refuse("plan: expected the output of plan(), got something else");
  if (header.num_requests != p.batch.num_requests)
    refuse("plan: expected one for " + str(p.batch.num_requests) + " requests, got one for " +
           str(header.num_requests));
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
  if (spec.invariant) same("the invariant split length", spec.invariant_split, made.invariant_split);
  if (spec.num_splits > 0) same("num_splits", spec.num_splits, made.num_splits);
  if (made.decode_rows > kMostDecodeRows || made.tile_rows > 1 << 16 || made.tile_rows < 1 || made.decode_heads < 1)
    refuse("plan: expected one made for the cpu backend, got one made for another");
}

}  // namespace chunkattn
