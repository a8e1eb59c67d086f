// Kernels for x86-64-v3.
#define CHUNKATTN_ISA avx2
#include "isa/table.h"

namespace chunkattn {
namespace avx2 {

static bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

extern const IsaTable kTable;
const IsaTable kTable = {"avx2", supported, always, scratch_bytes, run_item, merge, kTileRows};

}  // namespace avx2
}  // namespace chunkattn
