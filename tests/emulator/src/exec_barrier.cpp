// Barriers: bar.*, barrier.cluster, mbarrier.
#include <algorithm>

#include "handlers.h"
#include "memory.h"

namespace ptxemu {

// ---------------------------------------------------------------- bar.sync, bar.arrive, bar.red

namespace {

u32 live_threads(const Cta& cta) {
  u32 threads = 0;
  for (const Warp& warp : cta.warps)
    if (warp.state != WarpState::Done) threads += kWarpSize;
  return threads;
}

void give_votes(Warp& warp, const NamedBarrier& barrier) {
  const Instruction& inst = *warp.barrier_instruction;
  if (inst.operands[0] < 0) return;
  const u32 mask = warp.mask;
  if (inst.atomic == AtomicOp::Add) {
    FOR_ACTIVE_LANES(warp, lane) lanes<u32>(warp, inst.operands[0])[lane] = barrier.votes_count;
  } else {
    const bool result = inst.atomic == AtomicOp::And ? barrier.votes_all : barrier.votes_any;
    set_predicate(warp, inst.operands[0], result ? mask : 0);
  }
  set_poison(warp, inst.operands[0], 0);
}

/// Whether a barrier that completes follows another one of the same warps with no access to memory in between.
bool repeats_a_barrier(const Cta& cta, int id) {
  const NamedBarrier& barrier = cta.barriers[id];
  u32 threads = 0;
  u64 last = 0;
  for (const Warp& warp : cta.warps) {
    if (warp.state != WarpState::AtBarrier || warp.barrier_id != id) continue;
    if (threads && warp.last_barrier != last) return false;
    if (warp.last_barrier_threads != barrier.arrived_threads) return false;
    last = warp.last_barrier;
    threads += kWarpSize;
  }
  return !barrier.touched && last && threads == barrier.arrived_threads;  // nobody has only arrived
}

/// Whether a warp waited for it.
bool release_barrier(Cta& cta, int id) {
  NamedBarrier& barrier = cta.barriers[id];
  const bool idle = repeats_a_barrier(cta, id);
  cta.barriers_completed++;
  bool awaited = false;
  for (Warp& warp : cta.warps)
    if (warp.state == WarpState::AtBarrier && warp.barrier_id == id) {
      awaited = true;
      warp.barrier_instruction->idle += idle;
      warp.last_barrier = cta.barriers_completed;
      warp.last_barrier_threads = barrier.arrived_threads;
      warp.state = WarpState::Running;
      warp.view.join(barrier.arriving);
      give_votes(warp, barrier);
    }
  barrier = NamedBarrier();
  cta.cluster->progress++;
  return awaited;
}

}  // namespace

/// operands: destination of bar.red (or -1), barrier id, thread count (-1: the whole CTA), predicate.
void exec_barrier(Warp& warp, const Instruction& inst) {
  Cta& cta = *warp.cta;
  if (!require_full_warp(warp, inst)) return;
  cta.launch->counters.barriers++;
  const int lane = first_active_lane(warp);
  const u32 id = lanes<u32>(warp, inst.operands[1])[lane];
  if (id >= kNamedBarriers) fail(warp, inst, "barrier", format("barrier number %u (there are 16)", id));
  const bool whole = inst.operands[2] < 0;
  const u32 expected = whole ? live_threads(cta) : lanes<u32>(warp, inst.operands[2])[lane];
  if (expected % kWarpSize || !expected)
    fail(warp, inst, "barrier", format("thread count %u is not a multiple of 32", expected));

  NamedBarrier& barrier = cta.barriers[id];
  if (barrier.arrived_threads && (barrier.expected_threads != expected && !(whole && barrier.whole)))
    report(warp, inst, "barrier",
           format("barrier %u is used with %u threads here and with %u elsewhere", id, expected,
                  barrier.expected_threads));
  barrier.whole = whole;
  barrier.expected_threads = expected;
  barrier.arrived_threads += kWarpSize;
  if (inst.operands[3] >= 0) {
    const u32 votes =
        (inst.predicate_negated ? ~predicate(warp, inst.operands[3]) : predicate(warp, inst.operands[3])) & warp.mask;
    barrier.votes_all &= votes == warp.mask;
    barrier.votes_any |= votes != 0;
    barrier.votes_count += __builtin_popcount(votes);
  }
  barrier.arriving.join(warp.view);
  barrier.touched |= warp.touched_memory;
  if (!inst.arrive_only) warp.touched_memory = false;
  warp.advance();
  cta.cluster->progress++;
  if (barrier.arrived_threads > expected)
    report(warp, inst, "barrier", format("more arrivals on barrier %u than its %u threads", id, expected));

  warp.barrier_id = int(id);
  warp.barrier_instruction = &inst;
  if (!inst.arrive_only) warp.state = WarpState::AtBarrier;
  if (barrier.arrived_threads >= expected && !release_barrier(cta, int(id)))
    report(warp, inst, "barrier", format("all %u threads only arrive at barrier %u: nobody waits there", expected, id));
}

// ---------------------------------------------------------------- barrier.cluster

namespace {

void release_cluster_if_complete(Cluster& cluster) {
  u32 live = 0;
  for (auto& cta : cluster.ctas)
    for (Warp& warp : cta->warps) live += warp.state != WarpState::Done;
  if (!cluster.cluster_arrived || cluster.cluster_arrived < live) return;
  cluster.cluster_phase++;
  cluster.cluster_arrived = 0;
  cluster.cluster_completed = cluster.cluster_arriving;
  cluster.cluster_arriving = View();
  cluster.progress++;
  for (auto& cta : cluster.ctas)
    for (Warp& warp : cta->warps)
      if (warp.state == WarpState::AtClusterBarrier && cluster.cluster_phase >= warp.cluster_phase) {
        warp.state = WarpState::Running;
        warp.cluster_waited = warp.cluster_phase;
        warp.view.join(cluster.cluster_completed);
      }
}

}  // namespace

void exec_cluster_arrive(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  Cluster& cluster = *warp.cta->cluster;
  if (warp.cluster_phase != warp.cluster_waited)
    report(warp, inst, "barrier", "barrier.cluster.arrive twice without a wait in between");
  warp.cluster_phase++;
  cluster.cluster_arrived++;
  if (inst.ordering != Ordering::Relaxed) {
    fence_mbarrier_inits(warp);  // a release at cluster scope covers them
    cluster.cluster_arriving.join(warp.view);
    warp.advance();
  }
  cluster.progress++;
  release_cluster_if_complete(cluster);
}

void exec_cluster_wait(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  Cluster& cluster = *warp.cta->cluster;
  if (warp.cluster_phase == warp.cluster_waited) fail(warp, inst, "barrier", "barrier.cluster.wait without an arrive");
  warp.barrier_instruction = &inst;
  if (cluster.cluster_phase >= warp.cluster_phase) {
    warp.cluster_waited = warp.cluster_phase;
    warp.view.join(cluster.cluster_completed);
  } else {
    warp.state = WarpState::AtClusterBarrier;
  }
}

void barriers_after_exit(Warp& warp) {
  Cta& cta = *warp.cta;
  const u32 live = live_threads(cta);
  for (u32 id = 0; id < kNamedBarriers; id++)
    if (cta.barriers[id].whole && cta.barriers[id].arrived_threads && cta.barriers[id].arrived_threads >= live)
      release_barrier(cta, int(id));
  release_cluster_if_complete(*cta.cluster);
}

// ---------------------------------------------------------------- mbarrier

namespace {

SharedTarget mbarrier_target(Warp& warp, const Instruction& inst, int lane) {
  const SharedTarget target = shared_target(warp, inst, lane_address(warp, inst.address, lane));
  if (target.offset % 8) fail(warp, inst, "alignment", "mbarrier not aligned to 8 bytes");
  return target;
}

void complete_phase_if_done(Cta& cta, MBarrier& barrier) {
  if (barrier.pending_arrivals != 0 || barrier.pending_bytes != 0) return;
  barrier.phase++;
  barrier.pending_arrivals = barrier.expected_arrivals;
  barrier.arriving.seen.raise(barrier.agent, barrier.phase);  // the copies that completed here
  barrier.completed = std::move(barrier.arriving);
  barrier.arriving = View();
  cta.cluster->progress++;
}

void arrive(Cta& cta, Warp& warp, const Instruction& inst, MBarrier& barrier, u32 count) {
  if (barrier.pending_arrivals < count)
    fail(warp, inst, "barrier",
         format("mbarrier: %u arrivals where %u are still expected", count, barrier.pending_arrivals));
  barrier.pending_arrivals -= count;
  complete_phase_if_done(cta, barrier);
  cta.cluster->progress++;
}

constexpr s64 kMaxTransactionBytes = (1 << 20) - 1;

}  // namespace

MBarrier& mbarrier_at(Warp& warp, const Instruction& inst, const SharedTarget& target) {
  auto found = target.cta->mbarriers.find(target.offset);
  if (found == target.cta->mbarriers.end() || !found->second.live)
    fail(warp, inst, "barrier", format("mbarrier at shared+0x%x was never initialised", target.offset));
  MBarrier& barrier = found->second;
  const bool seen = barrier.initialised_at <= warp.view.seen.get(barrier.initialiser);
  const bool through_cluster = barrier.init_fenced && warp.cluster_waited > barrier.init_fenced_phase;
  if (!seen && !through_cluster && warp.cta->launch->options.check_races)
    report(warp, inst, "barrier",
           format("mbarrier at shared+0x%x is used without synchronisation after its init by %s", target.offset,
                  warp.cta->cluster->agent_name(barrier.initialiser).c_str()));
  return barrier;
}

void fence_mbarrier_inits(Warp& warp) {
  for (auto& [offset, barrier] : warp.cta->mbarriers)
    if (!barrier.init_fenced && barrier.initialised_at <= warp.view.seen.get(barrier.initialiser)) {
      barrier.init_fenced = true;
      barrier.init_fenced_phase = warp.cta->cluster->cluster_phase;
    }
}

void check_mbarrier_for_async(Warp& warp, const Instruction& inst, MBarrier& barrier, u32 offset) {
  const LaunchOptions& options = warp.cta->launch->options;
  if (!options.check_proxies || !options.check_mbarrier_init || barrier.init_fenced) return;
  if (barrier.initialised_at <= warp.view.fenced.get(barrier.initialiser)) return;
  report(warp, inst, "proxy",
         format("mbarrier at shared+0x%x: its init is not visible to the async proxy "
                "(no fence.mbarrier_init or fence.proxy.async)",
                offset));
}

/// operands: arrival count.
void exec_mbarrier_init(Warp& warp, const Instruction& inst) {
  Cta& cta = *warp.cta;
  FOR_ACTIVE_LANES(warp, lane) {
    const SharedTarget target = mbarrier_target(warp, inst, lane);
    if (target.cta != &cta) fail(warp, inst, "barrier", "mbarrier.init of another CTA's barrier");
    const auto old = cta.mbarriers.find(target.offset);
    if (old != cta.mbarriers.end()) old->second.live = false;
    write_shared(warp, inst, kSharedBase + target.offset, 8, true);
    MBarrier barrier;
    barrier.live = true;
    barrier.agent = cta.cluster->new_barrier_agent();
    cta.cluster->agent_names.push_back(format("mbarrier shared+0x%x", target.offset));
    barrier.expected_arrivals = barrier.pending_arrivals = lanes<u32>(warp, inst.operands[0])[lane];
    if (!barrier.expected_arrivals || barrier.expected_arrivals >= 1u << 20)
      fail(warp, inst, "barrier", "mbarrier.init with a count outside 1 to 2^20 - 1");
    barrier.initialiser = warp.agent;
    barrier.initialised_at = warp.tick();
    cta.mbarriers[target.offset] = barrier;
    cta.barriers_begin = std::min(cta.barriers_begin, target.offset);
    cta.barriers_end = std::max(cta.barriers_end, target.offset + 8);
  }
}

void exec_mbarrier_inval(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES(warp, lane) mbarrier_at(warp, inst, mbarrier_target(warp, inst, lane)).live = false;
}

/// operands: state (or -1), bytes of expect_tx (or -1), arrival count (or -1).
void exec_mbarrier_arrive(Warp& warp, const Instruction& inst) {
  const MBarrier* joined = nullptr;  // the lanes of a warp mostly arrive on one barrier
  u32 joined_phase = 0;
  FOR_ACTIVE_LANES(warp, lane) {
    const SharedTarget target = mbarrier_target(warp, inst, lane);
    MBarrier& barrier = mbarrier_at(warp, inst, target);
    if (inst.operands[0] >= 0)
      lanes<u64>(warp, inst.operands[0])[lane] = u64(barrier.phase) << 32 | barrier.pending_arrivals;
    if (inst.expect_tx) {
      const u32 bytes = lanes<u32>(warp, inst.operands[1])[lane];
      barrier.pending_bytes += inst.arrive_only ? -s64(bytes) : s64(bytes);
      if (std::abs(barrier.pending_bytes) > kMaxTransactionBytes)
        fail(warp, inst, "barrier", "mbarrier: transaction count beyond 2^20 - 1 bytes");
    }
    if (inst.without_arrive) {
      if (inst.arrive_only) complete_phase_if_done(*target.cta, barrier);  // complete_tx
      continue;
    }
    const u32 count = inst.operands[2] >= 0 ? lanes<u32>(warp, inst.operands[2])[lane] : 1;
    if (inst.drop) barrier.expected_arrivals -= std::min(count, barrier.expected_arrivals);
    if (inst.ordering != Ordering::Relaxed && (joined != &barrier || joined_phase != barrier.phase)) {
      barrier.arriving.join(warp.view);
      joined = &barrier;
      joined_phase = barrier.phase;
    }
    arrive(*target.cta, warp, inst, barrier, count);
  }
  if (inst.operands[0] >= 0) set_poison(warp, inst.operands[0], 0);
  warp.advance();
}

/// operands: destination predicate, parity or state.
void exec_mbarrier_wait(Warp& warp, const Instruction& inst) {
  u32 done = 0;
  bool first_phase = true;  // nothing has completed yet: the wait is for what precedes the first phase
  const MBarrier *joined = nullptr, *found = nullptr;
  u64 addresses[kWarpSize], found_at = 0;
  lane_addresses(warp, inst.address, addresses);
  FOR_ACTIVE_LANES(warp, lane) {
    if (!found || addresses[lane] != found_at) {  // the lanes of a warp mostly wait for one barrier
      found = &mbarrier_at(warp, inst, mbarrier_target(warp, inst, lane));
      found_at = addresses[lane];
    }
    const MBarrier& barrier = *found;
    bool complete;
    if (inst.parity)
      complete = ((barrier.phase - 1) & 1) == (lanes<u32>(warp, inst.operands[1])[lane] & 1);
    else
      complete = barrier.phase > u32(lanes<u64>(warp, inst.operands[1])[lane] >> 32);
    if (!complete) continue;
    done |= 1u << lane;
    first_phase &= barrier.phase == 0;
    if (inst.ordering == Ordering::Relaxed || joined == &barrier) continue;
    warp.view.join(barrier.completed);
    joined = &barrier;
  }
  set_predicate(warp, inst.operands[0], done);
  set_poison(warp, inst.operands[0], 0);
  inst.idle += first_phase && done == warp.mask;
  if ((done & warp.mask) != warp.mask) warp.yielded = true;
}

/// operands: count, state.
void exec_mbarrier_pending_count(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES(warp, lane)
  lanes<u32>(warp, inst.operands[0])[lane] = u32(lanes<u64>(warp, inst.operands[1])[lane]);
}

void mbarrier_complete_bytes(Cta& cta, Warp& issuer, const Instruction& inst, u32 offset, s64 bytes) {
  MBarrier& barrier = cta.mbarriers[offset];
  barrier.pending_bytes -= bytes;
  if (barrier.pending_bytes < 0 && barrier.pending_arrivals == 0)
    report(issuer, inst, "barrier",
           format("mbarrier shared+0x%x: %lld bytes more than expect_tx announced", offset,
                  (long long)-barrier.pending_bytes));
  complete_phase_if_done(cta, barrier);
}

void mbarrier_complete_arrival(Cta& cta, Warp& warp, const Instruction& inst, u32 offset, const View& view) {
  MBarrier& barrier = cta.mbarriers[offset];
  barrier.arriving.join(view);
  arrive(cta, warp, inst, barrier, 1);
}

}  // namespace ptxemu
