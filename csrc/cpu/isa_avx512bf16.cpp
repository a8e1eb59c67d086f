// Kernels for x86-64-v4 plus AVX512-BF16 and VBMI (fp8 by table). Two sets of them: Zen 4 multiplies pairs of bf16 at
// twice the rate of floats, Emerald Rapids at less than half of it.
#pragma GCC target("avx512bf16,avx512vbmi")
#define CHUNKATTN_ISA avx512bf16
#include "isa/table.h"

namespace chunkattn {
namespace avx512bf16 {

static bool supported() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool has_fast_pairs() { return !__builtin_cpu_is("intel"); }

// For queries of bf16, pairs wherever there are products.
static int64_t scratch_bytes_of_pairs(const AttentionParams& p, const PlanSpec& spec) {
  if (p.dtype == DType::kBF16) return scratch_bytes_as<ComputeBF16, ComputeBF16>(p, spec);
  return scratch_bytes(p, spec);
}
static void run_item_of_pairs(const AttentionParams& p, const PlanSpec& spec, const WorkItem& item, float* partials,
                              char* memory) {
  if (p.dtype == DType::kBF16) return run_item_as<ComputeBF16, ComputeBF16>(p, spec, item, partials, memory);
  run_item(p, spec, item, partials, memory);
}

// Pairs only where decodes read bytes, which are sooner bf16 than floats.
static bool decodes_bytes(const AttentionParams& p) { return p.dtype == DType::kBF16 && bytes_of(p.k.dtype) == 1; }
static int64_t scratch_bytes_of_floats(const AttentionParams& p, const PlanSpec& spec) {
  return decodes_bytes(p) ? scratch_bytes_as<ComputeF32, ComputeBF16>(p, spec) : scratch_bytes(p, spec);
}
static void run_item_of_floats(const AttentionParams& p, const PlanSpec& spec, const WorkItem& item, float* partials,
                               char* memory) {
  if (decodes_bytes(p)) return run_item_as<ComputeF32, ComputeBF16>(p, spec, item, partials, memory);
  run_item(p, spec, item, partials, memory);
}

extern const IsaTable kTable, kFloatTable;
const IsaTable kTable = {"avx512bf16",      supported, has_fast_pairs, scratch_bytes_of_pairs,
                         run_item_of_pairs, merge,     kTileRows};
const IsaTable kFloatTable = {"avx512fma",        supported, always,   scratch_bytes_of_floats,
                              run_item_of_floats, merge,     kTileRows};

}  // namespace avx512bf16
}  // namespace chunkattn
