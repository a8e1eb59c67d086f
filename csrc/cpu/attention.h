// Attention on the CPU: the instruction sets, the plan's parameters, the whole call.
#pragma once
#include <cstdint>
#include <vector>

#include "chunkattn/core/params.h"
#include "chunkattn/sched/plan.h"
#include "settings.h"

namespace chunkattn {

// Invariant mode joins states at absolute multiples of this many keys, whether or not items are cut there.
constexpr int64_t kInvariantSplit = 2048;

// The kernels of one instruction set.
struct IsaTable {
  const char* name;
  bool (*supported)();  // by the machine
  bool (*suits)();      // whether a machine that supports it should take it before those after it
  // Bytes of per-thread scratch for items of a call with this spec.
  int64_t (*scratch_bytes)(const AttentionParams& params, const PlanSpec& spec);
  // One work item; item.num_splits > 1 leaves partial states in `partials`.
  void (*run_item)(const AttentionParams& params, const PlanSpec& spec, const WorkItem& item, float* partials,
                   char* scratch);
  // Joins the partial states of an item's rows in split order and writes the results.
  void (*merge)(const AttentionParams& params, const WorkItem& item, float* partials, char* scratch);
  int64_t tile_rows;  // packed rows that the prefill kernel takes at once
};

// By name ("avx512bf16", "avx512fma", "avx512", "avx2", "portable"), or the best that the machine supports if name is
// nullptr or empty. nullptr if the name is unknown or the machine lacks it.
const IsaTable* isa_table(const char* name);

// The spec that attention() plans with; a plan made ahead must have been made with an equal one.
PlanSpec plan_spec(const AttentionParams& params, const IsaTable& isa, const Settings& settings, int num_threads,
                   int64_t num_splits);

// Most partial rows of a call with at most params.num_tokens tokens and any of the settings.
int64_t most_partial_rows(const AttentionParams& params, const IsaTable& isa, const std::vector<Settings>& settings,
                          int num_threads, int64_t num_splits, int64_t max_kv_len);

// Bytes of workspace that a plan's partial states need.
int64_t workspace_bytes(int64_t partial_rows, int64_t head_dim_v);

// Writes out and lse. Checks the contents of cu_seqlens_q, seq_lens and the visible part of the block table first and
// throws std::invalid_argument before anything is written.
//   plan: plan_words(B) words of make_plan, or nullptr: planned here with `num_splits` (0 = chosen).
//   workspace: at least workspace_bytes(partial rows of the plan, head_dim_v), or nullptr: the thread's own memory.
void attention(const AttentionParams& params, const IsaTable& isa, const Settings& settings, int num_threads,
               int64_t num_splits, const int64_t* plan, void* workspace, int64_t workspace_size);

}  // namespace chunkattn
