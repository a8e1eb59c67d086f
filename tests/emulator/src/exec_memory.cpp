// Loads, stores, atomics, and the fences that order them.
#include <algorithm>

#include "handlers.h"
#include "memory.h"
#include "reduction.h"

namespace ptxemu {
namespace {

// ---------------------------------------------------------------- counters

/// Wavefronts of a shared-memory request: 32 banks of 4 bytes, 128 bytes a wavefront; lanes that name
/// the same word share it. Wide accesses are served in halves or quarters of the warp.
void count_shared(Warp& warp, const u64* address, u32 bytes, u32 mask) {
  Counters& counters = warp.cta->launch->counters;
  counters.shared_requests++;
  const int lanes_per_pass = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  for (int begin = 0; begin < kWarpSize; begin += lanes_per_pass) {
    u64 words[32][4];
    int count[32] = {}, worst = 0;
    for (int lane = begin; lane < begin + lanes_per_pass; lane++) {
      if (!(mask >> lane & 1)) continue;
      for (u32 k = 0; k < std::max(1u, bytes / 4); k++) {
        const u64 word = address[lane] / 4 + k;
        const int bank = word % 32;
        bool known = false;
        for (int i = 0; i < std::min(count[bank], 4); i++) known |= words[bank][i] == word;
        if (known) continue;
        if (count[bank] < 4) words[bank][count[bank]] = word;
        worst = std::max(worst, ++count[bank]);
      }
    }
    counters.shared_wavefronts += worst;
  }
}

void count_global(Warp& warp, const u64* address, u32 bytes, u32 mask, bool is_store) {
  Counters& counters = warp.cta->launch->counters;
  counters.global_requests++;
  u64 sectors[kWarpSize * 2];
  int count = 0;
  for (int lane = 0; lane < kWarpSize; lane++) {
    if (!(mask >> lane & 1)) continue;
    for (u64 sector = address[lane] / 32; sector <= (address[lane] + bytes - 1) / 32; sector++) sectors[count++] = sector;
  }
  std::sort(sectors, sectors + count);
  counters.global_sectors += std::unique(sectors, sectors + count) - sectors;
  (is_store ? counters.global_bytes_written : counters.global_bytes_read) += u64(bytes) * __builtin_popcount(mask);
}

// ---------------------------------------------------------------- synchronisation through global memory
//
// A release publishes what the warp has seen at an address; an acquire of that address takes it over.
// Relaxed accesses take part only together with a fence of the same warp, before (release) or after
// (acquire) them.

ForeignView published_view(Warp& warp) {
  auto all = std::make_shared<ForeignClocks>();
  if (warp.view.foreign) *all = *warp.view.foreign;
  (*all)[warp.cta->cluster->number].join(warp.view.seen);
  return all;
}

void acquire_view(Warp& warp, const ForeignView& published) {
  if (!published) return;
  const auto own = published->find(warp.cta->cluster->number);
  if (own != published->end()) warp.view.seen.join(own->second);
  join_foreign(warp.view.foreign, published);
}

void publish(Warp& warp, u64 address, const ForeignView& view, bool keeps_others) {
  ForeignView& variable = warp.cta->launch->sync_variables[address];
  if (!keeps_others) variable = nullptr;  // a plain store ends the release sequence
  join_foreign(variable, view);
}

void synchronise_read(Warp& warp, const Instruction& inst, u64 address) {
  const auto& variables = warp.cta->launch->sync_variables;
  const auto found = variables.find(address);
  if (found == variables.end() || !found->second) return;
  if (inst.ordering == Ordering::Acquire || inst.ordering == Ordering::AcquireRelease)
    acquire_view(warp, found->second);
  else
    join_foreign(warp.pending_acquire, found->second);
}

void synchronise_write(Warp& warp, const Instruction& inst, u64 address, bool is_atomic) {
  if (inst.ordering == Ordering::Release || inst.ordering == Ordering::AcquireRelease) {
    publish(warp, address, published_view(warp), is_atomic);
    warp.advance();
  } else if (warp.released || !is_atomic) {
    publish(warp, address, warp.released, is_atomic);
  }
}

// ---------------------------------------------------------------- ld / st

u64 read_slot(Warp& warp, int slot, RegClass cls, int lane) {
  switch (cls) {
    case RegClass::B16: return lanes<u16>(warp, slot)[lane];
    case RegClass::B32: return lanes<u32>(warp, slot)[lane];
    default: return lanes<u64>(warp, slot)[lane];
  }
}

void write_slot(Warp& warp, int slot, RegClass cls, int lane, u64 value) {
  switch (cls) {
    case RegClass::B16: lanes<u16>(warp, slot)[lane] = value; break;
    case RegClass::B32: lanes<u32>(warp, slot)[lane] = value; break;
    case RegClass::B64: lanes<u64>(warp, slot)[lane] = value; break;
    default: break;
  }
}

u64 load_element(const u8* from, int bytes, bool sign_extend) {
  switch (bytes) {
    case 1: return sign_extend ? u64(s64(*(const s8*)from)) : *from;
    case 2: return sign_extend ? u64(s64(*(const s16*)from)) : *(const u16*)from;
    case 4: return sign_extend ? u64(s64(*(const s32*)from)) : *(const u32*)from;
    default: return *(const u64*)from;
  }
}

u8* local_bytes(Warp& warp, const Instruction& inst, u64 address, u32 bytes, int lane, std::vector<u8>& memory) {
  const size_t per_lane = warp.cta->launch->program->local_bytes;
  if (address + bytes > per_lane)
    fail(warp, inst, "bounds", format("local access of %u bytes at %llu of %zu", bytes, (unsigned long long)address,
                                      per_lane));
  return &memory[lane * per_lane + address];
}

/// Where one lane's bytes are; `defined` says of a load whether they are, and of a store what it writes.
u8* access(Warp& warp, const Instruction& inst, Space space, u64 address, u32 bytes, int lane, bool& defined) {
  Launch& launch = *warp.cta->launch;
  switch (space) {
    case Space::Shared:
    case Space::SharedCluster:
      return const_cast<u8*>(read_shared(warp, inst, address, bytes, defined));  // stores know their value
    case Space::Param:
      if (address + bytes > launch.params.size()) fail(warp, inst, "bounds", "access behind the kernel's parameters");
      return &launch.params[address];
    case Space::Local: {
      u8* marks = local_bytes(warp, inst, address, bytes, lane, warp.local_defined);
      if (inst.is_store)
        memset(marks, defined, bytes);
      else
        for (u32 k = 0; k < bytes; k++) defined &= marks[k] != 0;
      return local_bytes(warp, inst, address, bytes, lane, warp.local_memory);
    }
    default: {
      GlobalAccess how;
      how.strong = inst.ordering != Ordering::Weak;
      if (inst.is_store) {
        if (how.strong) synchronise_write(warp, inst, address, false);
        return write_global(warp, inst, address, bytes, bytes, how);
      }
      if (how.strong) synchronise_read(warp, inst, address);
      return const_cast<u8*>(read_global(warp, inst, address, bytes, bytes, how, defined));
    }
  }
}

/// The bytes that a lane stores.
void store_value(Warp& warp, const Instruction& inst, int lane, u8* to) {
  const int bytes = inst.element_bytes;
  for (int k = 0; k < inst.vector_length; k++, to += bytes) {
    const int slot = inst.operands[k];
    if (bytes == 16) {
      memcpy(to, warp.registers + slot + 16 * lane, 16);
    } else {
      const u64 value = read_slot(warp, slot, inst.classes[k], lane);
      memcpy(to, &value, bytes);  // little endian: the low bytes come first
    }
  }
}

}  // namespace

void exec_load_store(Warp& warp, const Instruction& inst) {
  const int count = inst.vector_length, bytes = inst.element_bytes;
  check_address(warp, inst, inst.address);
  u32 undefined[8] = {};
  if (inst.is_store && warp.tainted)
    for (int k = 0; k < count; k++) undefined[k] = poison(warp, inst.operands[k]) & warp.mask;
  u64 addresses[kWarpSize];
  Space counted = inst.space;
  FOR_ACTIVE_LANES (warp, lane) {
    u64 address = lane_address(warp, inst.address, lane);
    addresses[lane] = address;
    const Space space = counted = resolve_space(inst.space, address);
    bool defined = true;
    if (inst.is_store)
      for (int k = 0; k < count; k++) defined &= !(undefined[k] >> lane & 1);
    const bool sink = inst.is_store && !defined && space == Space::Global;
    if (sink) require_defined(warp, inst, 1u << lane, "value stored to global memory");
    if (inst.is_store && (space == Space::Shared || space == Space::SharedCluster)) {
      u8 value[64];
      store_value(warp, inst, lane, value);
      memcpy(write_shared(warp, inst, address, count * bytes, defined, value), value, count * bytes);
      continue;
    }
    u8* memory = access(warp, inst, space, address, count * bytes, lane, defined);
    if (inst.is_store) {
      store_value(warp, inst, lane, memory);
      continue;
    }
    for (int k = 0; k < count; k++, memory += bytes) {
      const int slot = inst.operands[k];
      if (bytes == 16) {
        memcpy(warp.registers + slot + 16 * lane, memory, 16);
      } else {
        write_slot(warp, slot, inst.classes[k], lane, load_element(memory, bytes, inst.sign_extend));
      }
    }
    if (!inst.is_store && !defined)
      for (int k = 0; k < count; k++) undefined[k] |= 1u << lane;
  }
  if (!inst.is_store && warp.cta->launch->options.check_undefined)
    for (int k = 0; k < count; k++) set_poison(warp, inst.operands[k], undefined[k]);
  if (warp.cta->launch->options.count_memory) {
    if (counted == Space::Shared || counted == Space::SharedCluster)
      count_shared(warp, addresses, count * bytes, warp.mask);
    else if (counted == Space::Global)
      count_global(warp, addresses, count * bytes, warp.mask, inst.is_store);
  }
}

// ---------------------------------------------------------------- atom / red

/// operands: [vector_length destinations unless is_store (red)], values, swap (cas).
void exec_atomic(Warp& warp, const Instruction& inst) {
  const int bytes = inst.element_bytes, count = inst.vector_length;
  const int first_value = inst.definitions;
  Cluster& cluster = *warp.cta->cluster;
  check_address(warp, inst, inst.address);
  u64 addresses[kWarpSize];
  u32 undefined = 0;
  if (warp.tainted)
    for (size_t k = first_value; k < inst.operands.size(); k++) undefined |= poison(warp, inst.operands[k]);
  if (undefined & warp.mask) require_defined(warp, inst, undefined, "operand of an atomic");
  bool is_global = false;
  FOR_ACTIVE_LANES (warp, lane) {
    u64 address = addresses[lane] = lane_address(warp, inst.address, lane);
    const Space space = resolve_space(inst.space, address);
    u8* memory;
    bool defined = true;
    if (space == Space::Global) {
      is_global = true;
      GlobalAccess how;
      how.strong = true;
      synchronise_read(warp, inst, address);
      read_global(warp, inst, address, bytes * count, bytes * count, how, defined);
      memory = write_global(warp, inst, address, bytes * count, bytes * count, how);
      synchronise_write(warp, inst, address, true);
    } else if (space == Space::Shared || space == Space::SharedCluster) {
      const SharedTarget target = locate_shared(warp, inst, address, bytes * count, true);
      target.cta->shared_version++;
      memory = &target.cta->shared[target.offset];
      // Atomics do not race with each other; they are ordered like barriers of their own.
      if (tracks_shared(*warp.cta->launch)) {
        defined = target.cta->shadow.is_defined(target.offset, bytes * count);
        target.cta->shadow.set_defined(target.offset, bytes * count, true);
        target.cta->shadow.atomic(*target.cta, warp, inst, warp_accessor(warp), target.offset, bytes * count);
      }
    } else {
      fail(warp, inst, "bounds", "atomic on a state space that has none");
    }
    if (!defined) report(warp, inst, "undefined", "atomic on memory that was never written");
    for (int k = 0; k < count; k++, memory += bytes) {
      const auto slot = [&](int at) { return read_slot(warp, inst.operands[at], inst.classes[at], lane); };
      const u64 value = slot(first_value + k);
      const bool cas = inst.atomic == AtomicOp::CompareAndSwap;
      const u64 result = combine_bits(inst.atomic, inst.type, memory, value, cas ? slot(first_value + 1) : 0);
      u64 old = 0;
      memcpy(&old, memory, bytes);
      memcpy(memory, &result, bytes);
      if (k < inst.definitions && inst.operands[k] >= 0)
        write_slot(warp, inst.operands[k], inst.classes[k], lane, old);
    }
  }
  for (int k = 0; k < inst.definitions; k++)
    if (inst.operands[k] >= 0) set_poison(warp, inst.operands[k], 0);
  cluster.progress++;
  if (warp.cta->launch->options.count_memory && is_global)
    count_global(warp, addresses, bytes * count, warp.mask, true);
}

// ---------------------------------------------------------------- fences

/// fence / membar: later relaxed writes publish what was seen, earlier relaxed reads are acquired.
void exec_fence(Warp& warp, const Instruction&) {
  acquire_view(warp, warp.pending_acquire);
  warp.pending_acquire = nullptr;
  warp.released = published_view(warp);
  warp.advance();
}

/// fence.proxy.async and fence.mbarrier_init.
void exec_proxy_fence(Warp& warp, const Instruction& inst) {
  if (inst.releases_async) {
    warp.view.fence_async_proxy();
    warp.advance();
  }
  fence_mbarrier_inits(warp);
}

/// fence.proxy.tensormap::generic.acquire [address], 128.
void exec_tensormap_acquire(Warp& warp, const Instruction& inst) {
  Launch& launch = *warp.cta->launch;
  FOR_ACTIVE_LANES (warp, lane) {
    const u64 address = lane_address(warp, inst.address, lane);
    auto& acquired = launch.map_acquires[address];
    acquired.version = launch.map_versions.count(address) ? launch.map_versions[address] : 0;
    acquired.cluster = warp.cta->cluster->number;
    acquired.agent = warp.agent;
    acquired.tick = warp.tick();
  }
  warp.advance();
}

/// st.async: a store to another CTA's shared memory that completes on a barrier there.
void exec_store_async(Warp& warp, const Instruction& inst) {
  check_address(warp, inst, inst.address);
  const int bytes = inst.element_bytes * inst.vector_length;
  FOR_ACTIVE_LANES (warp, lane) {
    const SharedTarget target = locate_shared(warp, inst, lane_address(warp, inst.address, lane), bytes, true);
    const SharedTarget barrier = locate_shared(warp, inst, lane_address(warp, inst.address2, lane), 8, false);
    if (barrier.cta != target.cta) fail(warp, inst, "barrier", "st.async: data and mbarrier lie in different CTAs");
    MBarrier& b = mbarrier_at(warp, inst, barrier);
    if (tracks_shared(*warp.cta->launch))
      target.cta->shadow.write(*target.cta, warp, inst, {b.agent, b.phase + 1, &warp.view, true}, target.offset, bytes);
    target.cta->shared_version++;
    for (int k = 0; k < inst.vector_length; k++) {
      const u64 value = read_slot(warp, inst.operands[k], inst.classes[k], lane);
      memcpy(&target.cta->shared[target.offset + k * inst.element_bytes], &value, inst.element_bytes);
    }
    mbarrier_complete_bytes(*target.cta, warp, inst, barrier.offset, bytes);
  }
}

}  // namespace ptxemu
