// A decoded kernel and the variables of its module.
#pragma once
#include <map>
#include <memory>

#include "instruction.h"

namespace ptxemu {

enum class Special : u8 {
  TidX, TidY, TidZ, NtidX, NtidY, NtidZ, CtaidX, CtaidY, CtaidZ, NctaidX, NctaidY, NctaidZ,
  LaneId, LaneMaskEq, LaneMaskLt, LaneMaskLe, LaneMaskGt, LaneMaskGe, WarpId, NwarpId, SmId, NsmId,
  ClusteridX, ClusteridY, ClusteridZ, NclusteridX, NclusteridY, NclusteridZ,
  ClusterCtaidX, ClusterCtaidY, ClusterCtaidZ, ClusterNctaidX, ClusterNctaidY, ClusterNctaidZ,
  ClusterCtarank, ClusterNctarank, DynamicSharedSize, TotalSharedSize, Clock, Clock64, GlobalTimer,
  GridId, Zero
};

struct ConstantSlot {
  Register slot;
  u64 value;
};
struct SpecialSlot {
  Register slot;
  Special which;
};
struct Parameter {
  std::string name;
  int offset, size;
};

struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<RegClass> register_class;  // of each virtual register, until slots are allocated
  std::vector<std::string> register_name;
  int register_bytes = 0;                // register file of one warp
  std::vector<ConstantSlot> constants;
  std::vector<SpecialSlot> specials;
  std::vector<int> undefined_at_entry;   // slots that may be read before they are written
  std::vector<Parameter> parameters;
  int parameter_bytes = 0;
  u32 static_shared = 0;
  u32 local_bytes = 0;  // per lane
  u32 wgmma_register_count = 0;
  u32 cluster[3] = {0, 0, 0};  // .reqnctapercluster, 0: none
  u32 max_threads = 0;         // .maxntid product, 0: none
  std::vector<std::unique_ptr<std::string>> texts;  // owns Instruction::text
  std::vector<SourceLocation> locations;
  std::vector<std::string> files;
};

/// A piece of memory that kernels may touch. "Device pointers" are host pointers.
struct Allocation {
  u64 begin = 0, end = 0;
  bool writable = true;
  bool defined = true;  // false: reading it before it is written gives undefined data
  std::string name;
};

/// Module-scope .global and .const variables, shared by the kernels of a module.
struct ModuleGlobals {
  std::map<std::string, u64> addresses;
  std::vector<std::unique_ptr<u8[]>> storage;
  std::vector<Allocation> allocations;
};

/// Gives every virtual register a slot; registers that are never live together share one.
void allocate_registers(Program& program);

}  // namespace ptxemu
