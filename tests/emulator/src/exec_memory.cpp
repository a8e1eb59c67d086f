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
    for (u64 sector = address[lane] / 32; sector <= (address[lane] + bytes - 1) / 32; sector++)
      sectors[count++] = sector;
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

/// Loads of one element by the active lanes, as T in memory and D in the register.
template <class T, class D>
void load_lanes(Warp& warp, u8* const* memory, int offset, int slot) {
  D* to = lanes<D>(warp, slot);
  FOR_ACTIVE_LANES(warp, lane) {
    T value;
    memcpy(&value, memory[lane] + offset, sizeof value);
    to[lane] = D(value);
  }
}

template <class T>
void load_lanes(Warp& warp, u8* const* memory, int offset, int slot, RegClass cls) {
  switch (cls) {
    case RegClass::B16: return load_lanes<T, u16>(warp, memory, offset, slot);
    case RegClass::B32: return load_lanes<T, u32>(warp, memory, offset, slot);
    default: return load_lanes<T, u64>(warp, memory, offset, slot);
  }
}

void load_element(Warp& warp, const Instruction& inst, u8* const* memory, int offset, int slot, RegClass cls) {
  switch (inst.element_bytes) {
    case 1:
      return inst.sign_extend ? load_lanes<s8>(warp, memory, offset, slot, cls)
                              : load_lanes<u8>(warp, memory, offset, slot, cls);
    case 2:
      return inst.sign_extend ? load_lanes<s16>(warp, memory, offset, slot, cls)
                              : load_lanes<u16>(warp, memory, offset, slot, cls);
    case 4:
      return inst.sign_extend ? load_lanes<s32>(warp, memory, offset, slot, cls)
                              : load_lanes<u32>(warp, memory, offset, slot, cls);
    case 8: return load_lanes<u64>(warp, memory, offset, slot, cls);
    default: FOR_ACTIVE_LANES(warp, lane) memcpy(warp.registers + slot + 16 * lane, memory[lane] + offset, 16);
  }
}

bool all_global(const Warp& warp, const u64* addresses) {
  bool all = true;
  FOR_ACTIVE_LANES(warp, lane) {
    u64 address = addresses[lane];
    all &= resolve_space(Space::Generic, address) == Space::Global;
  }
  return all;
}

u8* local_bytes(Warp& warp, const Instruction& inst, u64 address, u32 bytes, int lane, std::vector<u8>& memory) {
  const size_t per_lane = warp.cta->launch->program->local_bytes;
  if (address + bytes > per_lane)
    fail(warp, inst, "bounds",
         format("local access of %u bytes at %llu of %zu", bytes, (unsigned long long)address, per_lane));
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

template <class T>
void store_lanes(Warp& warp, u8* const* memory, int offset, int slot, int slot_bytes) {
  const u8* from = warp.registers + slot;  // little endian: the low bytes come first
  FOR_ACTIVE_LANES(warp, lane) memcpy(memory[lane] + offset, from + slot_bytes * lane, sizeof(T));
}

void store_element(Warp& warp, const Instruction& inst, u8* const* memory, int offset, int slot, RegClass cls) {
  const int width = slot_bytes(cls) / kWarpSize;
  struct Quad {
    u64 halves[2];
  };
  switch (inst.element_bytes) {
    case 1: return store_lanes<u8>(warp, memory, offset, slot, width);
    case 2: return store_lanes<u16>(warp, memory, offset, slot, width);
    case 4: return store_lanes<u32>(warp, memory, offset, slot, width);
    case 8: return store_lanes<u64>(warp, memory, offset, slot, width);
    default: return store_lanes<Quad>(warp, memory, offset, slot, 16);
  }
}

}  // namespace

void exec_load_store(Warp& warp, const Instruction& inst) {
  const int count = inst.vector_length, bytes = inst.element_bytes;
  const u32 size = count * bytes;
  check_address(warp, inst, inst.address);
  u32 undefined[8] = {}, any_undefined = 0;
  if (inst.is_store && warp.tainted)
    for (int k = 0; k < count; k++) any_undefined |= undefined[k] = poison(warp, inst.operands[k]) & warp.mask;
  u64 addresses[kWarpSize];
  lane_addresses(warp, inst.address, addresses);
  Space counted = inst.space;
  u32 checked = 0;
  if (inst.ordering == Ordering::Weak && !any_undefined &&
      (inst.space == Space::Global || (inst.space == Space::Generic && all_global(warp, addresses)))) {
    counted = Space::Global;
    checked = check_global_runs(warp, inst, addresses, size, warp.mask, inst.is_store);
  }

  // What the lanes store is gathered first: a check of shared memory may want to see it.
  u8 values[kWarpSize][64];
  u8* memory[kWarpSize];
  const bool to_shared = inst.is_store && (inst.space != Space::Global) && !checked;
  if (to_shared) {
    FOR_ACTIVE_LANES(warp, lane) memory[lane] = values[lane];
    for (int k = 0; k < count; k++) store_element(warp, inst, memory, k * bytes, inst.operands[k], inst.classes[k]);
  }
  FOR_ACTIVE_LANES(warp, lane) {
    u64 address = addresses[lane];
    if (checked >> lane & 1) {
      memory[lane] = reinterpret_cast<u8*>(address);
      continue;
    }
    const Space space = counted = resolve_space(inst.space, address);
    bool defined = true;
    if (inst.is_store)
      for (int k = 0; k < count; k++) defined &= !(undefined[k] >> lane & 1);
    if (inst.is_store && !defined && space == Space::Global)
      require_defined(warp, inst, 1u << lane, "value stored to global memory");
    if (inst.is_store && (space == Space::Shared || space == Space::SharedCluster))
      memory[lane] = write_shared(warp, inst, address, size, defined, values[lane]);
    else
      memory[lane] = access(warp, inst, space, address, size, lane, defined);
    if (to_shared) memcpy(memory[lane], values[lane], size);
    if (!inst.is_store && !defined)
      for (int k = 0; k < count; k++) undefined[k] |= 1u << lane;
  }
  for (int k = 0; k < count; k++) {
    if (!inst.is_store)
      load_element(warp, inst, memory, k * bytes, inst.operands[k], inst.classes[k]);
    else if (!to_shared)
      store_element(warp, inst, memory, k * bytes, inst.operands[k], inst.classes[k]);
  }
  if (!inst.is_store && warp.cta->launch->options.check_undefined)
    for (int k = 0; k < count; k++) set_poison(warp, inst.operands[k], undefined[k]);
  if (warp.cta->launch->options.count_memory) {
    if (counted == Space::Shared || counted == Space::SharedCluster)
      count_shared(warp, addresses, size, warp.mask);
    else if (counted == Space::Global)
      count_global(warp, addresses, size, warp.mask, inst.is_store);
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
  FOR_ACTIVE_LANES(warp, lane) {
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
      if (k < inst.definitions && inst.operands[k] >= 0) write_slot(warp, inst.operands[k], inst.classes[k], lane, old);
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
  FOR_ACTIVE_LANES(warp, lane) {
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
  FOR_ACTIVE_LANES(warp, lane) {
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
