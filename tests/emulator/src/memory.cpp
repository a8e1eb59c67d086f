#include "memory.h"

#include <algorithm>

namespace ptxemu {

Space resolve_space(Space space, u64& address) {
  if (space != Space::Generic) return space;
  const auto within = [&](u64 window) { return address >= window && address < window + kWindowSize; };
  if (within(kSharedWindow)) {
    address -= kSharedWindow;
    return Space::SharedCluster;
  }
  if (within(kLocalWindow)) {
    address -= kLocalWindow;
    return Space::Local;
  }
  if (within(kParamWindow)) {
    address -= kParamWindow;
    return Space::Param;
  }
  return Space::Global;
}

// ---------------------------------------------------------------- shared

SharedTarget shared_target(Warp& warp, const Instruction& inst, u64 address) {
  const u32 relative = shared_address(address);
  const u32 rank = relative >> kRankShift;
  Cta* cta = warp.cta;
  if (rank) {
    auto& ctas = cta->cluster->ctas;
    if (rank > ctas.size())
      fail(warp, inst, "bounds",
           format("shared::cluster address 0x%x names CTA %u of %zu", relative, rank - 1, ctas.size()));
    cta = ctas[rank - 1].get();
  }
  return {cta, (relative & ((1u << kRankShift) - 1)) - kSharedBase};
}

SharedTarget locate_shared(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool is_write) {
  const SharedTarget target = shared_target(warp, inst, address);
  const u32 size = target.cta->shared.size();
  if (target.offset > size || target.offset + bytes > size) {
    const s64 distance = s64(s32(target.offset)) - s64(size);
    fail(warp, inst, "bounds",
         format("shared %s of %u bytes at offset %d, %lld bytes past the end of shared memory (%u bytes)",
                is_write ? "write" : "read", bytes, s32(target.offset), (long long)(distance + bytes), size));
  }
  if (bytes <= 16 && target.offset % bytes)
    fail(warp, inst, "alignment", format("shared access of %u bytes at offset %u", bytes, target.offset));
  if (target.cta->warps.front().state == WarpState::Done && target.cta != warp.cta) {
    const auto& warps = target.cta->warps;
    if (std::all_of(warps.begin(), warps.end(), [](const Warp& w) { return w.state == WarpState::Done; }))
      report(warp, inst, "cluster",
             format("access to the shared memory of CTA rank %u, which has ended", target.cta->rank));
  }
  return target;
}

/// A live mbarrier is opaque: plain accesses to it are an error.
static void check_not_barrier(Warp& warp, const Instruction& inst, const SharedTarget& target, u32 bytes) {
  const auto& barriers = target.cta->mbarriers;
  if (target.offset >= target.cta->barriers_end || target.offset + bytes <= target.cta->barriers_begin) return;
  auto next = barriers.lower_bound(target.offset < 7 ? 0 : target.offset - 7);
  if (next != barriers.end() && next->first < target.offset + bytes && next->second.live)
    report(warp, inst, "barrier", format("plain access to the live mbarrier at shared+0x%x", next->first));
}

const u8* read_shared(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool& defined) {
  const SharedTarget target = locate_shared(warp, inst, address, bytes, false);
  if (tracks_shared(*warp.cta->launch)) {
    check_not_barrier(warp, inst, target, bytes);
    defined &= target.cta->shadow.read(*target.cta, warp, inst, warp_accessor(warp), target.offset, bytes);
  }
  return &target.cta->shared[target.offset];
}

u8* write_shared(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool defined, const u8* value) {
  const SharedTarget target = locate_shared(warp, inst, address, bytes, true);
  target.cta->shared_version++;
  if (tracks_shared(*warp.cta->launch)) {
    check_not_barrier(warp, inst, target, bytes);
    target.cta->shadow.write(*target.cta, warp, inst, warp_accessor(warp), target.offset, bytes, value);
    if (!defined) target.cta->shadow.set_defined(target.offset, bytes, false);
  }
  return &target.cta->shared[target.offset];
}

// ---------------------------------------------------------------- global

namespace {

/// The first allocation that begins behind an address.
std::vector<Allocation>::iterator allocation_after(Launch& launch, u64 address) {
  auto& all = *launch.allocations;
  return std::upper_bound(all.begin(), all.end(), address,
                          [](u64 value, const Allocation& a) { return value < a.begin; });
}

/// The allocation that holds all of the bytes, if there is one.
Allocation* find_allocation(Launch& launch, u64 address, u32 bytes) {
  const auto holds = [&](const Allocation& a) { return address >= a.begin && address + bytes <= a.end; };
  if (launch.last_allocation && holds(*launch.last_allocation)) return launch.last_allocation;
  const auto after = allocation_after(launch, address);
  if (after == launch.allocations->begin() || !holds(*(after - 1))) return nullptr;
  return launch.last_allocation = &*(after - 1);
}

/// Names the nearest allocation, an overrun as well as an underrun.
[[noreturn]] void fail_bounds(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool is_write) {
  Launch& launch = *warp.cta->launch;
  const auto after = allocation_after(launch, address);
  const Allocation* found = after == launch.allocations->begin() ? nullptr : &*(after - 1);
  std::string hint = "no allocation is near";
  const s64 past = found ? s64(address - found->end) : -1;
  const s64 before = after == launch.allocations->end() ? -1 : s64(after->begin - address);
  if (past >= -16 && found && (before < 0 || past <= before))
    hint = format("%lld bytes past the end of '%s' (%llu bytes)", (long long)past, found->name.c_str(),
                  (unsigned long long)(found->end - found->begin));
  else if (before >= 0)
    hint = format("%lld bytes before '%s'", (long long)before, after->name.c_str());
  fail(warp, inst, "bounds",
       format("global %s of %u bytes at 0x%llx: %s", is_write ? "write" : "read", bytes, (unsigned long long)address,
              hint.c_str()));
}

}  // namespace

Allocation& locate_global(Warp& warp, const Instruction& inst, u64 address, u32 bytes, bool is_write, u32 alignment) {
  Allocation* found = find_allocation(*warp.cta->launch, address, bytes);
  if (!found) fail_bounds(warp, inst, address, bytes, is_write);
  if (alignment && address % alignment)
    fail(warp, inst, "alignment",
         format("global access of %u bytes at '%s'+%llu, not aligned to %u", bytes, found->name.c_str(),
                (unsigned long long)(address - found->begin), alignment));
  if (is_write && !found->writable)
    fail(warp, inst, "read-only",
         format("write to the read-only '%s' at +%llu", found->name.c_str(),
                (unsigned long long)(address - found->begin)));
  return *found;
}

static GlobalShadow::Access shadow_access(Warp& warp, const GlobalAccess& how) {
  const bool own = how.agent == kNobody;
  return {own ? warp.agent : how.agent, own ? warp.tick() : how.tick, &warp.view, how.strong, how.async_proxy};
}

/// Read-only memory cannot race, and its contents are the host's.
static bool tracks_global(Warp& warp, const Allocation& allocation) {
  return allocation.writable && tracks_shared(*warp.cta->launch);
}

const u8* read_global(Warp& warp, const Instruction& inst, u64 address, u32 bytes, u32 alignment,
                      const GlobalAccess& how, bool& defined) {
  const Allocation& allocation = locate_global(warp, inst, address, bytes, false, alignment);
  if (tracks_global(warp, allocation))
    defined &= warp.cta->launch->global_shadow.read(warp, inst, shadow_access(warp, how), allocation, address, bytes);
  return reinterpret_cast<const u8*>(address);
}

u8* write_global(Warp& warp, const Instruction& inst, u64 address, u32 bytes, u32 alignment, const GlobalAccess& how) {
  const Allocation& allocation = locate_global(warp, inst, address, bytes, true, alignment);
  if (tracks_global(warp, allocation))
    warp.cta->launch->global_shadow.write(warp, inst, shadow_access(warp, how), allocation, address, bytes);
  return reinterpret_cast<u8*>(address);
}

/// How far apart the lanes are that go on where another one ends; 0: nowhere near.
static int run_stride(const u64* address, u32 bytes, u32 mask) {
  const int first = __builtin_ctz(mask);
  for (int stride = 1; first + stride < kWarpSize; stride *= 2)
    if ((mask >> (first + stride) & 1) && address[first + stride] == address[first] + bytes) return stride;
  return 0;
}

u32 check_global_runs(Warp& warp, const Instruction& inst, const u64* address, u32 bytes, u32 mask, bool is_write) {
  Launch& launch = *warp.cta->launch;
  const int stride = mask ? run_stride(address, bytes, mask) : 0;
  u32 done = 0;
  for (u32 left = stride ? mask : 0; left;) {
    const int first = __builtin_ctz(left);
    int last = first;
    u32 run = 1u << first;
    while (last + stride < kWarpSize && (left >> (last + stride) & 1) &&
           address[last + stride] == address[last] + bytes)
      run |= 1u << (last += stride);
    left &= ~run;
    const u32 total = u32(address[last] - address[first]) + bytes;
    const Allocation* found = find_allocation(launch, address[first], total);
    if (!found || address[first] % bytes || (is_write && !found->writable)) continue;
    if (tracks_global(warp, *found)) {
      const GlobalShadow::Access who = shadow_access(warp, {});
      if (is_write)
        launch.global_shadow.write(warp, inst, who, *found, address[first], total);
      else if (!launch.global_shadow.read(warp, inst, who, *found, address[first], total))
        continue;
    }
    done |= run;
  }
  return done;
}

}  // namespace ptxemu
