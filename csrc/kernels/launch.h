// The boundary between the host side and a kernel library.
//
// A kernel library is one instantiation, built by chunkattn/build from csrc/variants.toml, with neither torch nor
// Python in it. It exports, with C linkage, one launcher `chunkattn_<kernel>` of a type below and the two functions of
// library.h. A launcher checks nothing that chunkattn/validate has checked, enqueues its kernel on the stream (which
// may be capturing), never synchronises, and returns 0 or a cudaError_t. csrc/binding fills the structs from torch
// tensors and calls the launcher by its address.
#pragma once
#include <cstdint>

#include "chunkattn/core/params.h"
#include "chunkattn/sched/plan.h"

namespace chunkattn {

// Bump when a struct below or in core/params.h changes its meaning; a change of size is noticed by itself.
constexpr int32_t kLaunchVersion = 1;

struct LaunchContext {
  void* stream = nullptr;  // cudaStream_t
  int32_t num_sms = 0;     // multiprocessors of the device; grids of persistent kernels follow from it
};

// Besides AttentionParams: how the step was cut, and memory. The grid of a persistent kernel is spec.num_workers.
struct PlannedStep {
  PlanSpec spec;                  // what this call expects the plan to be made for
  const int64_t* plan = nullptr;  // [plan_words(B)], on the device, written by chunkattn_plan
  int64_t plan_words = 0;
  void* workspace = nullptr;  // on the device, aligned to 64 bytes; WorkspaceLayout
  int64_t workspace_bytes = 0;
};

struct PlanParams {
  PlanSpec spec;
  const int32_t* cu_seqlens_q = nullptr;  // [B + 1]
  const int32_t* seq_lens = nullptr;      // [B]
  int64_t num_requests = 0;               // B
  int64_t* words = nullptr;               // [plan_words(B)], written
};

// [n, …] with any strides; page ids index the first dim (nullptr: pages in order).
struct PageView {
  char* data = nullptr;
  int64_t stride[8] = {};       // elements
  int64_t num_pages = 0;        // of the pool or block; ids outside it are skipped
  const void* pages = nullptr;  // [n] int32 or int64, may be nullptr
  int64_t pages_stride = 1;
  bool pages_are_64 = false;
};

struct PageParams {
  PageView source, target;
  int64_t count = 0;         // pages moved
  int64_t size[8] = {};      // size[0] unused
  int32_t num_dims = 1;      // with the page dim
  int64_t element_size = 1;  // bytes
};

using AttentionLauncher = int32_t (*)(const AttentionParams*, const PlannedStep*, const LaunchContext*);
using PlanLauncher = int32_t (*)(const PlanParams*, const LaunchContext*);
using AppendLauncher = int32_t (*)(const AppendParams*, const LaunchContext*);
using MergeLauncher = int32_t (*)(const MergeParams*, const LaunchContext*);
using PageLauncher = int32_t (*)(const PageParams*, const LaunchContext*);

// The workspace of an attention call, in order: int32 counters [counters] (queue heads, then one arrival counter an
// item; the launcher zeroes them on the stream before its kernel), fp32 out [rows, Dv], max [rows] and sum [rows] of
// partial states. Each part is aligned to 64 bytes.
struct WorkspaceLayout {
  static constexpr int64_t kQueueHeads = 16;  // int32 words: a cache line
  int64_t counters = 0, rows = 0, head_dim_v = 0;
  int64_t carry = 0;  // of the rows, the last ones: two prefill tiles a worker, in invariant mode

  constexpr int64_t carry_begin() const { return rows - carry; }

  constexpr int64_t out_offset() const { return (counters * 4 + 63) / 64 * 64; }
  constexpr int64_t max_offset() const { return out_offset() + (rows * head_dim_v * 4 + 63) / 64 * 64; }
  constexpr int64_t sum_offset() const { return max_offset() + (rows * 4 + 63) / 64 * 64; }
  constexpr int64_t bytes() const { return sum_offset() + (rows * 4 + 63) / 64 * 64; }
};

// From maxima alone: items without splits number at most one a (token, KV head, tile of the group); splits
// add less than two for each item that is wanted, class by class.
inline WorkspaceLayout workspace_layout(const PlanSpec& spec, int64_t max_tokens, int64_t max_kv_len,
                                        int64_t head_dim_v) {
  WorkspaceLayout layout;
  layout.rows = max_partial_rows(spec, max_tokens, max_kv_len);
  layout.head_dim_v = head_dim_v;
  if (spec.invariant) layout.carry = 2 * spec.num_workers * spec.tile_rows;
  layout.rows += layout.carry;
  const int64_t whole_items = max_tokens * spec.num_kv_heads * ceil_div(spec.group(), spec.tile_rows);
  int64_t splits = 1;  // of an item, at most
  if (spec.num_splits > 0) splits = spec.num_splits;
  if (spec.invariant) splits = std::max<int64_t>(1, ceil_div(max_kv_len, spec.invariant_split));
  const int64_t planned = (spec.decode_cost ? 6 : 4) * spec.num_workers * spec.items_per_worker;
  layout.counters = WorkspaceLayout::kQueueHeads +
                    (spec.num_splits > 0 || spec.invariant ? whole_items * splits : whole_items + planned);
  return layout;
}

// What chunkattn_abi() of a library must return to be called by this build of the host side: sizes of the structs, and
// samples of what both sides compute by themselves.
inline int64_t launch_abi() {
  PlanSpec planned, shared, invariant;
  planned.num_workers = shared.num_workers = invariant.num_workers = 7;
  shared.decode_cost = 100;
  invariant.invariant = 1;
  uint64_t sum = kLaunchVersion;
  const int64_t facts[] = {sizeof(AttentionParams),
                           sizeof(PlannedStep),
                           sizeof(PlanParams),
                           sizeof(AppendParams),
                           sizeof(MergeParams),
                           sizeof(PageParams),
                           sizeof(LaunchContext),
                           workspace_layout(planned, 999, 99999, 64).bytes(),
                           workspace_layout(shared, 999, 99999, 64).bytes(),
                           workspace_layout(invariant, 999, 99999, 64).bytes()};
  for (const int64_t fact : facts) sum = sum * 1000003 + fact;
  return static_cast<int64_t>(sum >> 1);
}

}  // namespace chunkattn
