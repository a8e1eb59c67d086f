// The table of kernels of the instruction set that this translation unit is compiled for.
#pragma once
#include "../attention.h"
#include "decode_tile.h"
#include "prefill_tile.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

static_assert(kMaxDecodeRows == kMostDecodeRows, "settings must not exceed what the kernel takes");

template <class Compute>
static int64_t scratch_bytes_as(const AttentionParams& p, const PlanSpec& spec) {
  const int64_t prefill = PrefillItem<Compute>::scratch_bytes(p, max_of(spec.tile_rows, spec.decode_rows));
  const int64_t decode = DecodeItem<Compute>::scratch_bytes(p, spec.decode_rows, spec.decode_heads);
  return max_of(prefill, decode);
}

template <class Compute>
static void run_item_as(const AttentionParams& p, const PlanSpec& spec, const WorkItem& item, float* partials,
                        char* memory) {
  if (item.is_decode && !p.invariant) {
    Scratch scratch(memory);
    if (DecodeItem<Compute>(p, scratch, spec.decode_rows, spec.decode_heads).run(item, partials)) return;
  }
  Scratch scratch(memory);
  PrefillItem<Compute> prefill(p, scratch, item.row_end - item.row_begin);
  for (int64_t head = item.kv_head_begin; head < item.kv_head_end; ++head) prefill.run(item, head, partials);
}

static int64_t scratch_bytes(const AttentionParams& p, const PlanSpec& spec) {
#if defined(__AVX512BF16__)
  if (p.dtype == DType::kBF16) return scratch_bytes_as<ComputeBF16>(p, spec);
#endif
  return scratch_bytes_as<ComputeF32>(p, spec);
}

static void run_item(const AttentionParams& p, const PlanSpec& spec, const WorkItem& item, float* partials,
                     char* memory) {
#if defined(__AVX512BF16__)
  if (p.dtype == DType::kBF16) return run_item_as<ComputeBF16>(p, spec, item, partials, memory);
#endif
  run_item_as<ComputeF32>(p, spec, item, partials, memory);
}

static void merge(const AttentionParams& p, const WorkItem& item, float* partials, char* memory) {
  Scratch scratch(memory);
  merge_splits(p, item, partials, scratch.take<float>(p.head_dim_v + 2 * kLanes));
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
