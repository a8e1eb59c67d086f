// Kernels for x86-64-v4 plus AVX512-BF16 (bf16 products at twice the float rate) and VBMI (fp8 by table).
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

extern const IsaTable kTable;
const IsaTable kTable = {"avx512bf16", supported, scratch_bytes, run_item, merge, kTileRows};

}  // namespace avx512bf16
}  // namespace chunkattn
