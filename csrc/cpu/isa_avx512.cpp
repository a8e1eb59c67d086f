// Kernels for x86-64-v4.
#define CHUNKATTN_ISA avx512
#include "isa/table.h"

namespace chunkattn {
namespace avx512 {

static bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

extern const IsaTable kTable;
const IsaTable kTable = {"avx512", supported, always, scratch_bytes, run_item, merge, kTileRows};

}  // namespace avx512
}  // namespace chunkattn
