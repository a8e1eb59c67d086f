// cp.async: copies from global to shared memory, one a lane.
//
// A copy is checked when it is issued, as a write of the warp's cp.async engine, and its bytes move at the
// wait that covers it, the latest legal moment.
#include "handlers.h"
#include "memory.h"

namespace ptxemu {
namespace {

void move_bytes(Warp& warp, CpAsyncOp& op, int lane) {
  if (op.done >> lane & 1) return;
  op.done |= 1u << lane;
  const u32 total = op.instruction->copy_bytes, bytes = op.source_bytes[lane];
  u8* to = &warp.cta->shared[op.destination[lane]];
  if (bytes == 16) {
    memcpy(to, reinterpret_cast<const u8*>(op.source[lane]), 16);  // of a known size, since this is the rule
  } else {
    memcpy(to, reinterpret_cast<const u8*>(op.source[lane]), bytes);
    memset(to + bytes, 0, total - bytes);
  }
  warp.cta->shared_version++;
}

void drop_finished(std::vector<CpAsyncOp>& queue) {
  size_t kept = 0;
  for (size_t k = 0; k < queue.size(); k++)
    if (queue[k].mask) {
      if (kept != k) queue[kept] = queue[k];
      kept++;
    }
  queue.resize(kept);
}

/// What is complete is what is older than the oldest copy still pending.
void observe_completion(Warp& warp) {
  u32 oldest = warp.cp_async_epoch + 1;
  for (const CpAsyncOp& op : warp.cp_async)
    if (op.kind == CpAsyncOp::Copy) oldest = std::min(oldest, op.epoch);
  warp.view.seen.raise(warp.engine(AgentKind::CpAsync), oldest - 1);
  warp.cp_async_epoch++;
}

}  // namespace

/// address: shared destination, address2: global source; operands: src-size (or -1).
void exec_cp_async(Warp& warp, const Instruction& inst) {
  Cta& cta = *warp.cta;
  Launch& launch = *cta.launch;
  check_address(warp, inst, inst.address);
  check_address(warp, inst, inst.address2);
  CpAsyncOp op;
  op.instruction = &inst;
  op.mask = warp.mask;
  op.epoch = warp.cp_async_epoch;
  const Accessor who{warp.engine(AgentKind::CpAsync), op.epoch, &warp.view, false};
  u64 destinations[kWarpSize];
  lane_addresses(warp, inst.address, destinations);
  lane_addresses(warp, inst.address2, op.source);
  u32 whole = 0;  // lanes that copy all of copy_bytes
  FOR_ACTIVE_LANES(warp, lane) {
    u32 bytes = inst.operands[0] >= 0 ? lanes<u32>(warp, inst.operands[0])[lane] : u32(inst.copy_bytes);
    if (inst.ignore_source >= 0 && (predicate(warp, inst.ignore_source) >> lane & 1)) bytes = 0;
    if (bytes > u32(inst.copy_bytes)) fail(warp, inst, "bounds", "cp.async with src-size beyond cp-size");
    op.source_bytes[lane] = bytes;
    whole |= u32(bytes == u32(inst.copy_bytes)) << lane;
  }
  const u32 checked = check_global_runs(warp, inst, op.source, inst.copy_bytes, whole, false);
  FOR_ACTIVE_LANES(warp, lane) {
    const SharedTarget target = locate_shared(warp, inst, destinations[lane], inst.copy_bytes, true);
    op.destination[lane] = target.offset;
    op.group[lane] = warp.cp_async_group[lane];
    const u32 bytes = op.source_bytes[lane];
    bool defined = true;
    if (bytes && !(checked >> lane & 1)) {
      if (op.source[lane] % inst.copy_bytes)
        fail(warp, inst, "alignment", format("cp.async source not aligned to %d bytes", inst.copy_bytes));
      read_global(warp, inst, op.source[lane], bytes, 0, {}, defined);
    }
    if (tracks_shared(launch)) {
      cta.shadow.write(cta, warp, inst, who, target.offset, inst.copy_bytes);
      if (!defined) cta.shadow.set_defined(target.offset, inst.copy_bytes, false);
    }
    launch.counters.async_bytes_read += bytes;
  }
  if (launch.options.async == AsyncMode::Eager) FOR_ACTIVE_LANES(warp, lane) move_bytes(warp, op, lane);
  warp.cp_async.push_back(op);
}

void exec_cp_async_commit(Warp& warp, const Instruction& inst) {
  bool empty = true;
  for (const CpAsyncOp& op : warp.cp_async) FOR_ACTIVE_LANES(warp, lane)
  empty &= op.kind != CpAsyncOp::Copy || !(op.mask >> lane & 1) || op.group[lane] != warp.cp_async_group[lane];
  inst.idle += empty;
  FOR_ACTIVE_LANES(warp, lane) warp.cp_async_group[lane]++;
  warp.cp_async_epoch++;
}

/// immediate: how many of the latest groups may stay pending.
void exec_cp_async_wait(Warp& warp, const Instruction& inst) {
  bool idle = true;
  for (CpAsyncOp& op : warp.cp_async) {
    if (op.kind != CpAsyncOp::Copy) continue;
    FOR_ACTIVE_LANES(warp, lane)
    if ((op.mask >> lane & 1) &&
        (inst.wait_all || s64(op.group[lane]) < s64(warp.cp_async_group[lane]) - inst.immediate)) {
      idle = false;
      move_bytes(warp, op, lane);
      op.mask &= ~(1u << lane);
    }
  }
  inst.idle += idle;
  drop_finished(warp.cp_async);
  observe_completion(warp);
}

void exec_cp_async_mbarrier_arrive(Warp& warp, const Instruction& inst) {
  CpAsyncOp op;
  op.kind = CpAsyncOp::MBarrierArrive;
  op.instruction = &inst;
  op.mask = warp.mask;
  op.epoch = warp.cp_async_epoch++;
  FOR_ACTIVE_LANES(warp, lane) {
    const SharedTarget target = shared_target(warp, inst, lane_address(warp, inst.address, lane));
    MBarrier& barrier = mbarrier_at(warp, inst, target);
    op.destination[lane] = target.offset;
    if (!inst.no_increment) barrier.pending_arrivals++;
  }
  warp.cp_async.push_back(op);
  warp.cta->cluster->progress++;
  if (warp.cta->launch->options.async == AsyncMode::Eager) complete_cp_async_arrive(warp);
}

bool complete_cp_async_arrive(Warp& warp) {
  auto& queue = warp.cp_async;
  size_t arrive = 0;
  while (arrive < queue.size() && queue[arrive].kind != CpAsyncOp::MBarrierArrive) arrive++;
  if (arrive == queue.size()) return false;

  CpAsyncOp op = queue[arrive];
  for (size_t k = 0; k < arrive; k++) {
    const u32 covered = queue[k].mask & op.mask;
    for (int lane = 0; lane < kWarpSize; lane++)
      if (covered >> lane & 1) move_bytes(warp, queue[k], lane);
    queue[k].mask &= ~covered;
  }
  // The arrival tells of the copies, and of nothing else that the warp did.
  View view;
  view.seen.raise(warp.engine(AgentKind::CpAsync), op.epoch);
  queue[arrive].mask = 0;
  drop_finished(queue);
  for (int lane = 0; lane < kWarpSize; lane++)
    if (op.mask >> lane & 1) mbarrier_complete_arrival(*warp.cta, warp, *op.instruction, op.destination[lane], view);
  warp.cta->cluster->progress++;
  return true;
}

bool perform_cp_async_early(Warp& warp, u32 random) {
  std::vector<CpAsyncOp*> pending;
  for (CpAsyncOp& op : warp.cp_async)
    if (op.kind == CpAsyncOp::Copy && (op.mask & ~op.done)) pending.push_back(&op);
  if (pending.empty()) return false;
  CpAsyncOp& op = *pending[random % pending.size()];
  for (int lane = 0; lane < kWarpSize; lane++)
    if (op.mask >> lane & 1) move_bytes(warp, op, lane);
  return true;
}

}  // namespace ptxemu
