// Checked access to memory: every load, store and copy goes through these functions.
#pragma once
#include <optional>

#include "machine.h"

namespace ptxemu {

/// Resolves a shared or shared::cluster address (given in the shared or the generic space).
struct SharedTarget {
  Cta* cta;
  u32 offset;  // from the first byte a kernel may use
};
SharedTarget shared_target(Warp& warp, const Instruction& inst, u64 address);

/// Shared-space address of a generic or shared address.
inline u32 shared_address(u64 address) {
  return address >= kSharedWindow ? u32(address - kSharedWindow) : u32(address);
}

/// Bounds and alignment of a shared access; no race check.
SharedTarget locate_shared(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool is_write);

/// The accessor for a plain access of a warp.
inline Accessor warp_accessor(Warp& warp) { return {warp.agent, warp.tick(), &warp.view, false}; }

inline bool tracks_shared(const Launch& launch) { return launch.options.check_races || launch.options.check_undefined; }

/// Plain read of shared memory with all checks; `defined` is cleared where bytes are undefined.
const u8* read_shared(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool& defined);
/// Plain reads of 16 bytes by the lanes of one instruction: read_shared() with the usual case up front.
class SharedQuads {
 public:
  SharedQuads(Warp& warp, const Instruction& inst) : warp_(warp), inst_(inst), cta_(*warp.cta) {
    if (cta_.launch->options.check_races) reader_.emplace(cta_.shadow, warp_accessor(warp), pc_of(warp, inst), true);
  }

  const u8* read(u32 address, bool& defined) {
    const u32 offset = address - kSharedBase;
    if (reader_ && offset % 16 == 0 && offset + 16 <= cta_.shared.size() && offset < offset + 16 &&
        (offset >= cta_.barriers_end || offset + 16 <= cta_.barriers_begin) &&
        reader_->read(offset / 16, [](Agent, u32) {}))
      return &cta_.shared[offset];
    return read_shared(warp_, inst_, address, 16, defined);
  }

 private:
  Warp& warp_;
  const Instruction& inst_;
  Cta& cta_;
  std::optional<SharedShadow::QuadReader> reader_;
};

/// Plain write; the caller fills the bytes. defined: whether the data is; value: what will be written, if known.
u8* write_shared(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool defined, const u8* value = nullptr);

/// Bounds, alignment and permission of a global access.
Allocation& locate_global(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool is_write, u32 alignment);

/// Checks plain accesses to global memory of the lanes in `mask`, `bytes` each, by runs of lanes that lie one behind
/// another. Returns the lanes that are done; whatever may be wrong, or undefined, is left to a look at them one by one.
u32 check_global_runs(Warp& warp, const Instruction& inst, const u64* address, u32 bytes, u32 mask, bool is_write);

/// How a global access is ordered, for the race check.
struct GlobalAccess {
  bool strong = false;
  bool async_proxy = false;
  Agent agent = kNobody;  // kNobody: the warp itself
  u32 tick = 0;
};
const u8* read_global(Warp& warp, const Instruction& inst, u64 address, u32 bytes, u32 alignment,
                      const GlobalAccess& how, bool& defined);
u8* write_global(Warp& warp, const Instruction& inst, u64 address, u32 bytes, u32 alignment, const GlobalAccess& how);

/// Which state space a generic address lies in; makes the address relative to it.
Space resolve_space(Space space, u64& address);

}  // namespace ptxemu
