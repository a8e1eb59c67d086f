// The TMA engine: cp.async.bulk and cp.async.bulk.tensor, loads, stores and reductions.
//
// A copy is checked when it is issued, in the async proxy; its bytes move as late as the program allows:
// when all warps wait (copies that complete on an mbarrier) or at the wait_group (bulk groups).
#include <algorithm>

#include "handlers.h"
#include "memory.h"
#include "reduction.h"
#include "tensor_tile.h"

namespace ptxemu {
namespace {

void fill_outside(const TensorMap& map, u8* to) {
  memset(to, 0, 16);
  if (!map.fill_nan) return;
  const int bytes = map.element_bytes();
  for (int k = 0; k < 16; k += bytes) memset(to + k, 0xff, bytes - 1), to[k + bytes - 1] = 0x7f;
}

ScalarType reduction_type(u8 element_type) {
  switch (element_type) {
    case kElementU64: return ScalarType::U64;
    case kElementS64: return ScalarType::S64;
    case kElementS32: return ScalarType::S32;
    case kElementF16: return ScalarType::F16;
    case kElementBF16: return ScalarType::BF16;
    case kElementF32:
    case kElementF32Ftz: return ScalarType::F32;
    case kElementF64: return ScalarType::F64;
    default: return ScalarType::U32;
  }
}

void reduce_bytes(const Instruction& inst, ScalarType type, u8* to, const u8* from, u32 bytes, u32 element) {
  for (u32 k = 0; k < bytes; k += element) {
    u64 value = 0;
    memcpy(&value, from + k, element);
    const u64 result = combine_bits(inst.atomic, type, to + k, value);
    memcpy(to + k, &result, element);
  }
}

// ---------------------------------------------------------------- performing

/// The shared offset of a chunk: the swizzle works on the address within the shared window.
u32 swizzled(const TensorMap& map, u32 tile_offset, u32 chunk_offset) {
  return swizzle_address(kSharedBase + tile_offset + chunk_offset, map.swizzle) - kSharedBase;
}

/// fp32 to tf32, as cvt.rna.
void round_to_tf32(u8* bytes) {
  u32 words[4];
  memcpy(words, bytes, 16);
  for (u32& word : words)
    if ((word & 0x7f800000) != 0x7f800000) word = (word + 0x1000) & ~0x1fffu;
  memcpy(bytes, words, 16);
}

void load_tile(const BulkOp& op, Cta& cta, u32 destination) {
  const TensorMap& map = *op.map;
  const bool rounds = map.element_type == kElementTF32 || map.element_type == kElementTF32Ftz;
  const u32 row_bytes = map.box[0] * map.element_bytes();
  for_each_tile_row(map, op.coordinates, [&](const TileRow& row) {
    const u8* from = reinterpret_cast<const u8*>(row.global_address);
    for (u32 byte = 0; byte < row_bytes; byte += 16) {
      u8* to = &cta.shared[swizzled(map, destination, row.shared_offset + byte)];
      if (row.bytes == row_bytes) {
        memcpy(to, from + byte, 16);  // of a known size, since this is the rule
      } else {
        const TileChunk chunk = chunk_of_row(row, byte);
        fill_outside(map, to);
        if (chunk.bytes) memcpy(to + chunk.skip, reinterpret_cast<const u8*>(chunk.global_address), chunk.bytes);
      }
      if (rounds) round_to_tf32(to);
    }
  });
}

void store_tile(const BulkOp& op) {
  const Cta& cta = *op.issuer->cta;
  const Instruction& inst = *op.instruction;
  for_each_tile_chunk(*op.map, op.coordinates, [&](const TileChunk& chunk) {
    if (!chunk.bytes) return;
    const u8* from = &cta.shared[swizzled(*op.map, u32(op.source), chunk.shared_offset)] + chunk.skip;
    u8* to = reinterpret_cast<u8*>(chunk.global_address);
    if (inst.reduces)
      reduce_bytes(inst, reduction_type(op.map->element_type), to, from, chunk.bytes, op.map->element_bytes());
    else
      memcpy(to, from, chunk.bytes);
  });
}

/// Moves the bytes of a bulk-group store.
void perform_store(BulkOp& op) {
  if (op.done) return;
  op.done = true;
  const Instruction& inst = *op.instruction;
  if (op.map) return store_tile(op);
  u8* to = reinterpret_cast<u8*>(op.destination);
  const u8* from = &op.issuer->cta->shared[op.source];
  if (inst.reduces)
    reduce_bytes(inst, inst.type, to, from, op.bytes, inst.element_bytes);
  else
    memcpy(to, from, op.bytes);
}

template <class F>
void for_each_destination(const BulkOp& op, F visit) {
  Cluster& cluster = *op.issuer->cta->cluster;
  for (auto& cta : cluster.ctas)
    if (op.cta_mask >> cta->rank & 1) visit(*cta);
}

// ---------------------------------------------------------------- issuing

/// Fills destination CTAs and barrier of a copy that completes on an mbarrier.
void route(Warp& warp, const Instruction& inst, BulkOp& op, int lane, u32 bytes) {
  const SharedTarget target = locate_shared(warp, inst, lane_address(warp, inst.address, lane), bytes, true);
  const SharedTarget barrier = shared_target(warp, inst, lane_address(warp, inst.address2, lane));
  op.destination = target.offset;
  op.barrier = barrier.offset;
  op.bytes = bytes;
  op.cta_mask = 1u << target.cta->rank;
  if (inst.multicast) {
    op.cta_mask = lanes<u16>(warp, inst.operands[1])[lane];
    if (!op.cta_mask || op.cta_mask >> warp.cta->cluster->ctas.size())
      fail(warp, inst, "cluster", format("multicast mask 0x%x names CTAs outside the cluster", op.cta_mask));
  } else if (barrier.cta != target.cta) {
    fail(warp, inst, "barrier", "copy whose mbarrier lies in another CTA than its data");
  }
  for_each_destination(op, [&](Cta& cta) {
    MBarrier& b = mbarrier_at(warp, inst, {&cta, op.barrier});
    check_mbarrier_for_async(warp, inst, b, op.barrier);
    if (tracks_shared(*cta.launch))
      cta.shadow.write(cta, warp, inst, {b.agent, b.phase + 1, &warp.view, true}, op.destination, bytes);
  });
  op.epoch = warp.cta->cluster->ctas[__builtin_ctz(op.cta_mask)]->mbarriers[op.barrier].phase + 1;
}

void enqueue_load(Warp& warp, BulkOp& op) {
  Launch& launch = *warp.cta->launch;
  launch.counters.async_bytes_read += op.bytes;
  if (launch.options.async == AsyncMode::Eager)
    complete_bulk(op);
  else
    warp.cta->cluster->bulk.push_back(op);
  warp.cta->cluster->progress++;
}

void enqueue_store(Warp& warp, BulkOp& op, u32 source_bytes) {
  Cta& cta = *warp.cta;
  op.group = warp.bulk_group[__builtin_ctz(op.lanes)];
  op.epoch = warp.bulk_epoch;
  op.unread_lanes = op.lanes;
  cta.launch->counters.async_bytes_written += source_bytes;
  if (tracks_shared(*cta.launch)) {
    const Accessor reader{warp.engine(AgentKind::BulkRead), op.epoch, &warp.view, true};
    if (!cta.shadow.read(cta, warp, *op.instruction, reader, u32(op.source), source_bytes) &&
        cta.launch->options.check_undefined)
      report(warp, *op.instruction, "undefined", "bulk store of shared memory that was never written");
  }
  if (cta.launch->options.async == AsyncMode::Eager) perform_store(op);
  warp.bulk.push_back(op);
}

/// A store that another lane issues just now with the same operands changes nothing: it only has one more owner.
bool joins_store(Warp& warp, const BulkOp& op, size_t issued_before) {
  const u32 group = warp.bulk_group[__builtin_ctz(op.lanes)];
  for (size_t k = issued_before; k < warp.bulk.size(); k++) {
    BulkOp& known = warp.bulk[k];
    if (known.map == op.map && known.source == op.source && known.group == group &&
        std::equal(op.coordinates, op.coordinates + 5, known.coordinates)) {
      known.lanes |= op.lanes;
      known.unread_lanes |= op.lanes;
      return true;
    }
  }
  return false;
}

GlobalAccess store_access(Warp& warp, const Instruction& inst) {
  GlobalAccess how;
  how.strong = inst.reduces;
  how.async_proxy = true;
  how.agent = warp.engine(AgentKind::BulkWrite);
  how.tick = warp.bulk_epoch;
  return how;
}

}  // namespace

void complete_bulk(const BulkOp& op) {
  for_each_destination(op, [&](Cta& cta) {
    const MBarrier& barrier = cta.mbarriers[op.barrier];
    if (barrier.phase + 1 != op.epoch)
      report(*op.issuer, *op.instruction, "barrier",
             "the mbarrier's phase completed before this copy did (expect_tx too small, or none)");
    const u32 destination = u32(op.destination);
    if (op.map)
      load_tile(op, cta, destination);
    else if (op.instruction->bulk == BulkKind::SharedToCluster)
      memcpy(&cta.shared[destination], &op.issuer->cta->shared[op.source], op.bytes);
    else
      memcpy(&cta.shared[destination], reinterpret_cast<const u8*>(op.source), op.bytes);
    cta.shared_version++;
    mbarrier_complete_bytes(cta, *op.issuer, *op.instruction, op.barrier, op.bytes);
  });
}

/// address: destination, address2: mbarrier (loads); operands: source or destination in global memory or
/// the shared source, multicast mask; then size.
void exec_bulk_copy(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES(warp, lane) {
    BulkOp op;
    op.instruction = &inst;
    op.issuer = &warp;
    op.lanes = 1u << lane;
    const u32 bytes = lanes<u32>(warp, inst.operands[2])[lane];
    if (bytes % 16) fail(warp, inst, "alignment", format("bulk copy of %u bytes, not a multiple of 16", bytes));
    if (!bytes) continue;
    const u64 other =
        inst.value64 ? lanes<u64>(warp, inst.operands[0])[lane] : lanes<u32>(warp, inst.operands[0])[lane];
    bool defined = true;
    GlobalAccess how;
    how.async_proxy = true;
    switch (inst.bulk) {
      case BulkKind::Prefetch: continue;
      case BulkKind::GlobalToShared:
        read_global(warp, inst, other, bytes, 16, how, defined);
        op.source = other;
        route(warp, inst, op, lane, bytes);
        break;
      case BulkKind::SharedToCluster: {
        const SharedTarget source = locate_shared(warp, inst, other, bytes, false);
        op.source = source.offset;
        route(warp, inst, op, lane, bytes);
        if (tracks_shared(*warp.cta->launch)) {
          const MBarrier& b = warp.cta->cluster->ctas[__builtin_ctz(op.cta_mask)]->mbarriers[op.barrier];
          warp.cta->shadow.read(*warp.cta, warp, inst, {b.agent, op.epoch, &warp.view, true}, source.offset, bytes);
        }
        break;
      }
      case BulkKind::SharedToGlobal: {
        const SharedTarget source = locate_shared(warp, inst, lane_address(warp, inst.address, lane), bytes, false);
        if (source.offset % 16) fail(warp, inst, "alignment", "bulk store from shared memory not aligned to 16");
        op.source = source.offset;
        op.destination = other;
        op.bytes = bytes;
        write_global(warp, inst, other, bytes, 16, store_access(warp, inst));
        enqueue_store(warp, op, bytes);
        continue;
      }
    }
    if (op.destination % 16) fail(warp, inst, "alignment", "bulk copy to shared memory not aligned to 16");
    enqueue_load(warp, op);
  }
}

/// address: shared side, address2: mbarrier (loads); operands: tensor map, multicast mask; coordinates.
void exec_tensor_copy(Warp& warp, const Instruction& inst) {
  const size_t issued_before = warp.bulk.size();
  FOR_ACTIVE_LANES(warp, lane) {
    BulkOp op;
    op.instruction = &inst;
    op.issuer = &warp;
    op.lanes = 1u << lane;
    op.map = &tensor_map_at(warp, inst, lanes<u64>(warp, inst.operands[0])[lane]);
    if (op.map->rank != inst.coordinates.size())
      fail(warp, inst, "tensor-map",
           format("%zu coordinates for a tensor map of rank %d", inst.coordinates.size(), op.map->rank));
    if (inst.bulk == BulkKind::Prefetch) continue;
    for (size_t k = 0; k < inst.coordinates.size(); k++)
      op.coordinates[k] = lanes<s32>(warp, inst.coordinates[k])[lane];
    const u32 bytes = tile_bytes(*op.map);
    for (int k = 0; k < op.map->rank; k++)
      if (op.map->element_stride[k] != 1) fail(warp, inst, "unsupported", "tensor map with element strides");
    if (inst.bulk == BulkKind::GlobalToShared) {
      for_each_tile_row(*op.map, op.coordinates, [&](const TileRow& row) {
        GlobalAccess how;
        how.async_proxy = true;
        bool defined = true;
        if (row.bytes) read_global(warp, inst, row.global_address, row.bytes, 0, how, defined);
      });
      route(warp, inst, op, lane, bytes);
      if (op.destination % 128) fail(warp, inst, "alignment", "tensor copy to shared memory not aligned to 128");
      enqueue_load(warp, op);
    } else {
      const SharedTarget source = locate_shared(warp, inst, lane_address(warp, inst.address, lane), bytes, false);
      if (source.offset % 128) fail(warp, inst, "alignment", "tensor store from shared memory not aligned to 128");
      op.source = source.offset;
      if (!inst.reduces && joins_store(warp, op, issued_before)) continue;
      for_each_tile_row(*op.map, op.coordinates, [&](const TileRow& row) {
        if (row.bytes) write_global(warp, inst, row.global_address, row.bytes, 0, store_access(warp, inst));
      });
      enqueue_store(warp, op, bytes);
    }
  }
}

// ---------------------------------------------------------------- bulk groups

void exec_bulk_commit(Warp& warp, const Instruction& inst) {
  bool empty = true;
  for (const BulkOp& op : warp.bulk)
    FOR_ACTIVE_LANES(warp, lane) empty &= !(op.lanes >> lane & 1) || op.group != warp.bulk_group[lane];
  inst.idle += empty;
  FOR_ACTIVE_LANES(warp, lane) warp.bulk_group[lane]++;
  warp.bulk_epoch++;
}

/// immediate: how many of the latest groups may stay pending; wait_read: only their reads are waited for.
void exec_bulk_wait(Warp& warp, const Instruction& inst) {
  auto& queue = warp.bulk;
  u32 oldest_read = warp.bulk_epoch + 1, oldest_write = oldest_read;
  bool idle = true;
  std::erase_if(queue, [&](BulkOp& op) {
    u32 covered = 0;
    FOR_ACTIVE_LANES(warp, lane)
    covered |= u32(s64(op.group) < s64(warp.bulk_group[lane]) - inst.immediate) << lane;
    covered &= inst.wait_read ? op.unread_lanes : op.lanes;
    idle &= !covered;
    if (covered) perform_store(op);
    op.unread_lanes &= ~covered;
    if (op.unread_lanes) oldest_read = std::min(oldest_read, op.epoch);
    if (!inst.wait_read) op.lanes &= ~covered;
    const bool gone = !op.lanes;
    if (!gone) oldest_write = std::min(oldest_write, op.epoch);
    return gone;
  });
  inst.idle += idle;
  warp.view.seen.raise(warp.engine(AgentKind::BulkRead), oldest_read - 1);
  warp.view.seen.raise(warp.engine(AgentKind::BulkWrite), oldest_write - 1);
  warp.bulk_epoch++;
}

bool perform_bulk_store_early(Warp& warp, u32 random) {
  std::vector<BulkOp*> pending;
  for (BulkOp& op : warp.bulk)
    if (!op.done) pending.push_back(&op);
  if (pending.empty()) return false;
  perform_store(*pending[random % pending.size()]);
  return true;
}

void finish_bulk_stores(Warp& warp, const Instruction&) {
  for (BulkOp& op : warp.bulk) {
    if (op.unread_lanes)
      report(warp, *op.instruction, "pending-async", "bulk store still reads shared memory when its warp ends");
    perform_store(op);
  }
  warp.bulk.clear();
}

}  // namespace ptxemu
