// The table of kernels of the instruction set that this translation unit is compiled for.
#pragma once
#include "../attention.h"
#include "decode_tile.h"
#include "prefill_tile.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

static_assert(kMaxDecodeRows == kMostDecodeRows, "settings must not exceed what the kernel takes");

template <class Prefill, class Decode>
static int64_t scratch_bytes_as(const AttentionParams& p, const PlanSpec& spec) {
  const int64_t prefill = PrefillItem<Prefill>::scratch_bytes(p, max_of(spec.tile_rows, spec.decode_rows));
  const int64_t decode = DecodeItem<Decode>::scratch_bytes(p, spec.decode_rows, spec.decode_heads);
  return max_of(prefill, decode);
}

template <class Prefill, class Decode>
static void run_item_as(const AttentionParams& p, const PlanSpec& spec, const WorkItem& item, float* partials,
                        char* memory) {
  if (item.is_decode && !p.invariant) {
    Scratch scratch(memory);
    if (DecodeItem<Decode>(p, scratch, spec.decode_rows, spec.decode_heads).run(item, partials)) return;
  }
  Scratch scratch(memory);
  PrefillItem<Prefill> prefill(p, scratch, item.row_end - item.row_begin);
  for (int64_t head = item.kv_head_begin; head < item.kv_head_end; ++head) prefill.run(item, head, partials);
}

static int64_t scratch_bytes(const AttentionParams& p, const PlanSpec& spec) {
  return scratch_bytes_as<ComputeF32, ComputeF32>(p, spec);
}
static void run_item(const AttentionParams& p, const PlanSpec& spec, const WorkItem& item, float* partials,
                     char* memory) {
  run_item_as<ComputeF32, ComputeF32>(p, spec, item, partials, memory);
}

static bool always() { return true; }
static void merge(const AttentionParams& p, const WorkItem& item, float* partials, char* memory) {
  Scratch scratch(memory);
  merge_splits(p, item, partials, scratch.take<float>(p.head_dim_v + 2 * kLanes));
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
