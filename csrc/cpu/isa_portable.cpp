// Kernels for any machine.
#define CHUNKATTN_ISA portable
#include "isa/table.h"

namespace chunkattn {
namespace portable {

static bool supported() { return true; }

extern const IsaTable kTable;
const IsaTable kTable = {"portable", supported, always, scratch_bytes, run_item, merge, kTileRows};

}  // namespace portable
}  // namespace chunkattn
