// Kernels for any machine.
#define CHUNKATTN_ISA portable
#include "isa/table.h"

namespace chunkattn {
namespace portable {

static bool supported() { return true; }

extern const IsaTable kTable;
const IsaTable kTable = {"portable", supported, scratch_bytes, run_item, merge, kTileRows};

}  // namespace portable
}  // namespace chunkattn
