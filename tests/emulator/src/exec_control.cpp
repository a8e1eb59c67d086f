// Control flow and warp collectives.
#include <algorithm>

#include "handlers.h"
#include "memory.h"

namespace ptxemu {

void exec_nop(Warp&, const Instruction&) {}

void exec_branch(Warp& warp, const Instruction& inst) {
  warp.pc = inst.branch_target;
  warp.branched = true;
}

/// Instructions that wait in require_full_warp().
static bool is_aligned(const Instruction& inst) {
  static const Handler handlers[] = {exec_barrier,   exec_cluster_arrive, exec_cluster_wait, exec_set_registers,
                                     exec_mma,       exec_ldmatrix,       exec_stmatrix,     exec_movmatrix,
                                     exec_wgmma,     exec_wgmma_fence,    exec_wgmma_commit, exec_wgmma_wait,
                                     exec_tensormap_copy};
  return std::find(std::begin(handlers), std::end(handlers), inst.handler) != std::end(handlers);
}

void exec_exit(Warp& warp, const Instruction&) {
  for (const LaneGroup& group : warp.groups) {
    const Instruction& waiting = warp.cta->launch->program->code[group.pc];
    if (group.stalled && is_aligned(waiting))
      fail(warp, waiting, "convergence",
           format("lanes %08x wait at an .aligned instruction for lanes that end without it", group.mask));
  }
  warp.live_mask &= ~warp.mask;
  warp.mask = 0;
  warp.branched = true;
}

void exec_trap(Warp& warp, const Instruction& inst) { fail(warp, inst, "trap", "the kernel stopped itself"); }

void exec_yield(Warp& warp, const Instruction&) { warp.yielded = true; }

/// Time is counted in instructions of the warp: monotonic, and nothing more.
void exec_clock(Warp& warp, const Instruction& inst) {
  const u64 now = warp.instruction_count * 4 + 1000;
  FOR_ACTIVE_LANES (warp, lane) {
    if (inst.value64)
      lanes<u64>(warp, inst.operands[0])[lane] = now;
    else
      lanes<u32>(warp, inst.operands[0])[lane] = u32(now);
  }
}

/// setmaxnreg: the count is checked, registers are not scarce here.
void exec_set_registers(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  if (inst.immediate < 24 || inst.immediate > 256 || inst.immediate % 8)
    fail(warp, inst, "launch", "setmaxnreg needs a multiple of 8 from 24 to 256");
}

bool converge(Warp& warp, u32 members) {
  if (!(members & warp.live_mask & ~warp.mask)) return true;
  warp.retry = true;
  return false;
}

bool require_full_warp(Warp& warp, const Instruction& inst) {
  if (warp.mask == warp.live_mask) return true;
  const auto on_its_way = [](const LaneGroup& group) { return !group.stalled; };
  if (std::none_of(warp.groups.begin(), warp.groups.end(), on_its_way))
    fail(warp, inst, "convergence", format(".aligned instruction executed by lanes %08x of %08x", warp.mask,
                                           warp.live_mask));
  warp.retry = true;
  return false;
}

/// bar.warp.sync. Lanes of a warp run in lockstep, so only their meeting matters.
void exec_warp_sync(Warp& warp, const Instruction& inst) {
  const int lane = first_active_lane(warp);
  converge(warp, lanes<u32>(warp, inst.operands[0])[lane]);
}

/// operands: d, a, b, c, membermask; predicate_out: p.
void exec_shuffle(Warp& warp, const Instruction& inst) {
  u32* destination = lanes<u32>(warp, inst.operands[0]);
  const u32* source = lanes<u32>(warp, inst.operands[1]);
  const u32* lane_operand = lanes<u32>(warp, inst.operands[2]);
  const u32* clamp_operand = lanes<u32>(warp, inst.operands[3]);
  const u32* members = lanes<u32>(warp, inst.operands[4]);
  if (!converge(warp, members[first_active_lane(warp)])) return;
  u32 result[kWarpSize], in_range_mask = 0, undefined = 0;
  const u32 undefined_source = warp.tainted ? poison(warp, inst.operands[1]) : 0;
  FOR_ACTIVE_LANES (warp, lane) {
    if (!(members[lane] >> lane & 1))
      fail(warp, inst, "convergence", "shfl.sync by a lane that is not in its membermask");
    const u32 b = lane_operand[lane] & 31, clamp = clamp_operand[lane] & 31;
    const u32 segment = (clamp_operand[lane] >> 8) & 31;
    const int max_lane = (lane & segment) | (clamp & ~segment), min_lane = lane & segment;
    int from;
    bool in_range;
    switch (inst.shuffle) {
      case ShuffleMode::Butterfly:
        from = lane ^ b;
        in_range = from <= max_lane;
        break;
      case ShuffleMode::Index:
        from = min_lane | (b & ~segment);
        in_range = from <= max_lane;
        break;
      case ShuffleMode::Up:
        from = lane - int(b);
        in_range = from >= max_lane;
        break;
      default: from = lane + int(b); in_range = from <= max_lane;
    }
    if (!in_range) from = lane;
    if (!(warp.mask >> from & 1)) {
      report(warp, inst, "convergence", format("shfl lane %d reads lane %d, which does not take part", lane, from));
      undefined |= 1u << lane;
    }
    result[lane] = source[from];
    undefined |= (undefined_source >> from & 1) << lane;
    if (in_range) in_range_mask |= 1u << lane;
  }
  FOR_ACTIVE_LANES (warp, lane) destination[lane] = result[lane];
  set_poison(warp, inst.operands[0], undefined);
  if (inst.predicate_out >= 0) {
    set_predicate(warp, inst.predicate_out, in_range_mask);
    set_poison(warp, inst.predicate_out, 0);
  }
}

/// operands: destination (or -1), membermask.
void exec_elect(Warp& warp, const Instruction& inst) {
  const u32 members = lanes<u32>(warp, inst.operands[1])[first_active_lane(warp)];
  if (!converge(warp, members)) return;
  const int leader = __builtin_ctz(members & warp.mask);
  if (inst.operands[0] >= 0) {
    FOR_ACTIVE_LANES (warp, lane) lanes<u32>(warp, inst.operands[0])[lane] = leader;
    set_poison(warp, inst.operands[0], 0);
  }
  set_predicate(warp, inst.predicate_out, 1u << leader);
  set_poison(warp, inst.predicate_out, 0);
}

/// operands: destination, source predicate, membermask.
void exec_vote(Warp& warp, const Instruction& inst) {
  if (!converge(warp, lanes<u32>(warp, inst.operands[2])[first_active_lane(warp)])) return;
  u32 votes = predicate(warp, inst.operands[1]);
  if (inst.predicate_negated) votes = ~votes;
  votes &= warp.mask;
  const u32 undefined = warp.tainted && (poison(warp, inst.operands[1]) & warp.mask) ? kFullMask : 0;
  bool result = false;
  switch (inst.vote) {
    case VoteMode::Ballot:
      FOR_ACTIVE_LANES (warp, lane) lanes<u32>(warp, inst.operands[0])[lane] = votes;
      set_poison(warp, inst.operands[0], undefined);
      return;
    case VoteMode::All: result = votes == warp.mask; break;
    case VoteMode::Any: result = votes != 0; break;
    case VoteMode::Uni: result = votes == 0 || votes == warp.mask; break;
  }
  set_predicate(warp, inst.operands[0], result ? kFullMask : 0);
  set_poison(warp, inst.operands[0], undefined);
}

/// operands: d, a, membermask; match.any: mask of equal lanes, match.all: mask or 0, with predicate_out.
void exec_match(Warp& warp, const Instruction& inst) {
  if (!converge(warp, lanes<u32>(warp, inst.operands[2])[first_active_lane(warp)])) return;
  const auto value = [&](int lane) {
    return inst.value64 ? lanes<u64>(warp, inst.operands[1])[lane] : u64(lanes<u32>(warp, inst.operands[1])[lane]);
  };
  const u32 undefined = warp.tainted && (poison(warp, inst.operands[1]) & warp.mask) ? kFullMask : 0;
  u32 result[kWarpSize] = {};
  bool all = true;
  FOR_ACTIVE_LANES (warp, lane) {
    for (int other = 0; other < kWarpSize; other++)
      if ((warp.mask >> other & 1) && value(other) == value(lane)) result[lane] |= 1u << other;
    all &= result[lane] == warp.mask;
  }
  FOR_ACTIVE_LANES (warp, lane)
    lanes<u32>(warp, inst.operands[0])[lane] = inst.wait_all ? (all ? warp.mask : 0) : result[lane];
  set_poison(warp, inst.operands[0], undefined);
  if (inst.predicate_out >= 0) {
    set_predicate(warp, inst.predicate_out, all ? kFullMask : 0);
    set_poison(warp, inst.predicate_out, undefined);
  }
}

/// operands: d, a, membermask.
void exec_redux(Warp& warp, const Instruction& inst) {
  if (!converge(warp, lanes<u32>(warp, inst.operands[2])[first_active_lane(warp)])) return;
  const u32* values = lanes<u32>(warp, inst.operands[1]);
  const bool is_signed = inst.type == ScalarType::S32;
  u32 result = values[first_active_lane(warp)];
  bool first = true;
  FOR_ACTIVE_LANES (warp, lane) {
    const u32 v = values[lane];
    if (first) {
      first = false;
      continue;
    }
    switch (inst.atomic) {
      case AtomicOp::Add: result += v; break;
      case AtomicOp::And: result &= v; break;
      case AtomicOp::Or: result |= v; break;
      case AtomicOp::Xor: result ^= v; break;
      case AtomicOp::Min: result = is_signed ? u32(std::min<s32>(result, v)) : std::min(result, v); break;
      default: result = is_signed ? u32(std::max<s32>(result, v)) : std::max(result, v); break;
    }
  }
  const u32 undefined = warp.tainted && (poison(warp, inst.operands[1]) & warp.mask) ? kFullMask : 0;
  FOR_ACTIVE_LANES (warp, lane) lanes<u32>(warp, inst.operands[0])[lane] = result;
  set_poison(warp, inst.operands[0], undefined);
}

void exec_active_mask(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES (warp, lane) lanes<u32>(warp, inst.operands[0])[lane] = warp.mask;
}

// ---------------------------------------------------------------- addresses

/// mapa: the same place in the shared memory of another CTA of the cluster. operands: d, a, rank.
void exec_mapa(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES (warp, lane) {
    const u32 rank = lanes<u32>(warp, inst.operands[2])[lane];
    if (rank >= warp.cta->cluster->ctas.size())
      fail(warp, inst, "bounds", format("mapa to rank %u in a cluster of %zu", rank, warp.cta->cluster->ctas.size()));
    const u32 prefix = (rank + 1) << kRankShift, offset_mask = (1u << kRankShift) - 1;
    if (inst.value64) {
      const u64 from = lanes<u64>(warp, inst.operands[1])[lane];
      const u64 window = from >= kSharedWindow ? kSharedWindow : 0;
      lanes<u64>(warp, inst.operands[0])[lane] = window + (prefix | (u32(from - window) & offset_mask));
    } else {
      lanes<u32>(warp, inst.operands[0])[lane] = prefix | (lanes<u32>(warp, inst.operands[1])[lane] & offset_mask);
    }
  }
}

/// getctarank. operands: d, a.
void exec_cta_rank(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES (warp, lane) {
    const u64 address = inst.value64 ? lanes<u64>(warp, inst.operands[1])[lane]
                                     : u64(lanes<u32>(warp, inst.operands[1])[lane]);
    const u32 rank = shared_address(address) >> kRankShift;
    lanes<u32>(warp, inst.operands[0])[lane] = rank ? rank - 1 : warp.cta->rank;
  }
}

/// isspacep. operands: p, a.
void exec_is_space(Warp& warp, const Instruction& inst) {
  u32 result = 0;
  FOR_ACTIVE_LANES (warp, lane) {
    u64 address = lanes<u64>(warp, inst.operands[1])[lane];
    Space space = resolve_space(Space::Generic, address);
    if (space == Space::SharedCluster && inst.space == Space::Shared) {
      const u32 rank = u32(address) >> kRankShift;
      if (!rank || rank - 1 == warp.cta->rank) space = Space::Shared;
    }
    result |= u32(space == inst.space) << lane;
  }
  set_predicate(warp, inst.operands[0], result);
}

}  // namespace ptxemu
