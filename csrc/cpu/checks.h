// Checks of what index tensors and scales hold; all run before anything is written. Each failure throws
// std::invalid_argument with one sentence, "{arg}: expected …, got …". chunkattn/planning/contents.py has the same
// checks for other backends.
#pragma once
#include <string>

#include "chunkattn/core/params.h"
#include "chunkattn/sched/plan.h"

namespace chunkattn {

[[noreturn]] void refuse(const std::string& message);

// What an id of a pool's page (or slot) may be, in words.
std::string pool_ids(int64_t count, const std::string& noun);

// Prefix sums start at 0, rise and stay within the tokens, those of the argument `tokens`; KV lengths are not negative.
void check_lengths(const BatchView& batch, int64_t num_tokens, const char* tokens = "q");

// KV lengths fit the block table, and page ids of positions from the first one that a row can see (window_left < 0:
// the request's first) lie in the pool. Other columns may hold anything.
void check_pages(const BatchView& batch, int64_t num_pages, int64_t page_size, int64_t window_left);

// A scale of a tensor or of heads is a number above 0. Scales of single tokens are not looked at: those of dead slots
// may hold anything.
void check_scale(const char* arg, const KvScale& scale, int64_t num_heads);

// Appended tokens are counted in the KV length.
void check_appended(const BatchView& batch);

// Everything that attention reads from index tensors and scales.
void check_batch(const AttentionParams& params);

// A plan must have been made for these lengths and this problem; `spec` is what the call itself would plan with.
void check_plan(const AttentionParams& params, const PlanSpec& spec, const int64_t* plan);

}  // namespace chunkattn
