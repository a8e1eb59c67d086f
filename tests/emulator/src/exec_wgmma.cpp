// wgmma: descriptors, the queue of operations in flight, and the rules on its registers.
//
// A wgmma is checked when it is issued and computed as late as the program allows, at the wait_group that
// covers it: touching its registers or its tiles too early gives wrong numbers as well as a report.
#include <algorithm>

#include "handlers.h"
#include "matrix_formats.h"
#include "memory.h"

namespace ptxemu {
namespace {

/// A shared-memory matrix descriptor. Layouts are the canonical ones of the PTX manual, in bytes.
struct MatrixDescriptor {
  u32 start, leading_offset, stride_offset, base_offset;
  int swizzle;

  explicit MatrixDescriptor(u64 bits)
      : start((bits & 0x3fff) << 4),
        leading_offset(((bits >> 16) & 0x3fff) << 4),
        stride_offset(((bits >> 32) & 0x3fff) << 4),
        base_offset((bits >> 49) & 7),
        swizzle((bits >> 62) & 3) {}

  static constexpr int kChunksPerRow[4] = {1, 8, 4, 2};  // 16-byte chunks of a swizzle row, by mode

  /// Address of the 16-byte chunk number `chunk` along k, of row mn. K-major.
  u32 k_major(int mn, int chunk) const {
    const u32 offset = swizzle == kSwizzleNone
                           ? (mn % 8) * 16 + (mn / 8) * stride_offset + chunk * leading_offset
                           : (mn % 8) * 16 * kChunksPerRow[swizzle] + (mn / 8) * stride_offset + chunk * 16;
    return swizzle_address(start + offset, swizzle);
  }

  /// Address of the chunk of 8 16-bit elements from mn on (a multiple of 8), at k. MN-major.
  u32 mn_major(int mn, int k) const {
    const int tile = 8 * kChunksPerRow[swizzle];
    const u32 offset = swizzle == kSwizzleNone ? (mn / 8) * stride_offset + (k % 8) * 16 + (k / 8) * leading_offset
                                               : (mn % tile) * 2 + (mn / tile) * leading_offset +
                                                     (k % 8) * 16 * kChunksPerRow[swizzle] + (k / 8) * stride_offset;
    return swizzle_address(start + offset, swizzle);
  }
};

constexpr int kChunksAlongK = 2;  // every wgmma covers 32 bytes of k
constexpr int kMaxK = 32, kMaxN = 256;

/// Calls visit(address, first row or column, k) for every 16-byte chunk of an operand tile.
template <class F>
void for_each_chunk(const MatrixDescriptor& descriptor, bool mn_major, int begin, int end, int elements, F visit) {
  if (!mn_major) {
    for (int mn = begin; mn < end; mn++)
      for (int chunk = 0; chunk < kChunksAlongK; chunk++) visit(descriptor.k_major(mn, chunk), mn, chunk * elements);
  } else {
    for (int k = 0; k < kChunksAlongK * elements; k++)
      for (int mn = begin; mn < end; mn += 8) visit(descriptor.mn_major(mn, k), mn, k);
  }
}

/// The first of the four warps that execute a wgmma together.
Warp* warpgroup(Warp& warp) { return &warp.cta->warps[warp.id & ~3]; }

inline const u8* chunk_bytes(Warp& warp, const Instruction& inst, u32 address) {
  Cta& cta = *warp.cta;
  const u32 offset = address - kSharedBase;
  if (address < kSharedBase || offset + 16 > cta.shared.size()) [[unlikely]]
    fail(warp, inst, "bounds", format("wgmma descriptor reaches shared+0x%x of 0x%zx", offset, cta.shared.size()));
  return &cta.shared[offset];
}

/// The place for who wrote a tile, by operation.
TileWriters& tile_writers(Warp& warp, const Instruction& inst, u64 descriptor) {
  auto& table = warp.cta->tile_writers;
  if (table.empty()) table.resize(kTileWriters);
  const u64 hash = (descriptor * 0x9e3779b97f4a7c15ull) ^ (reinterpret_cast<u64>(&inst) >> 4) ^
                   (warp.wgmma_group * 97ull) ^ (u64(warp.id) >> 2);
  return table[(hash ^ (hash >> 32)) % kTileWriters];
}

/// Adds the last write of a word; false if there are too many different ones.
bool add_writer(TileWriters& into, Agent writer, u32 tick) {
  if (into.count && into.writes[into.count - 1].writer == writer && into.writes[into.count - 1].tick >= tick)
    return true;
  for (int k = 0; k < into.count; k++)
    if (into.writes[k].writer == writer) {
      into.writes[k].tick = std::max(into.writes[k].tick, tick);
      return true;
    }
  if (into.count == int(std::size(into.writes))) return false;
  into.writes[into.count++] = {writer, tick};
  return true;
}

/// Books the reads of a tile in the async proxy; undefined rows or columns go to `undefined`. The operation is one of
/// the warpgroup: its first warp records it, and every warp must be ordered after whoever wrote the tile.
void check_tile(Warp& warp, const Instruction& inst, u64 bits, bool mn_major, int begin, int end, int elements,
                u64* undefined) {
  const MatrixDescriptor descriptor(bits);
  if (descriptor.base_offset) fail(warp, inst, "unsupported", "wgmma descriptor with a base offset");
  Cta& cta = *warp.cta;
  const Warp& leader = warpgroup(warp)[0];
  const bool record = leader.id == warp.id;
  const Accessor who{leader.engine(AgentKind::Wgmma), warp.wgmma_group + 1, &warp.view, true};
  const bool races = cta.launch->options.check_races;
  TileWriters& known = tile_writers(warp, inst, bits);
  if (races && !record && known.instruction == &inst && known.descriptor == bits && known.group == warp.wgmma_group &&
      known.warpgroup == leader.id) {
    bool ordered = true;
    for (int k = 0; k < known.count; k++)
      ordered &= cta.shadow.is_ordered(who, known.writes[k].writer, known.writes[k].tick);
    if (ordered) return;
  }
  SharedShadow::QuadReader reader(cta.shadow, who, pc_of(warp, inst), races && record);
  TileWriters found;
  bool simple = races;
  for_each_chunk(descriptor, mn_major, begin, end, elements, [&](u32 address, int mn, int) {
    chunk_bytes(warp, inst, address);
    const u32 offset = address - kSharedBase;
    const auto on_writer = [&](Agent writer, u32 tick) { simple = simple && add_writer(found, writer, tick); };
    if (races && reader.read(offset / 16, on_writer)) return;
    simple = false;
    if (cta.shadow.read(cta, warp, inst, who, offset, 16, record)) return;
    for (int k = mn; k < mn + (mn_major ? 8 : 1); k++) undefined[k / 64] |= 1ull << (k % 64);
  });
  if (!simple) return;
  found.instruction = &inst;
  found.descriptor = bits;
  found.group = warp.wgmma_group;
  found.warpgroup = leader.id;
  known = found;
}

/// The k x n tile of B that was converted last: the four warps of a warpgroup share it. It keeps the order that
/// it has in shared memory.
const WgmmaTile& b_tile(Warp& warp, const WgmmaOp& op) {
  const Instruction& inst = *op.instruction;
  WgmmaTile& tile = warp.cta->wgmma_tile;
  if (tile.version == warp.cta->shared_version && tile.descriptor == op.descriptor_b && tile.instruction == &inst)
    return tile;
  tile.values.resize(kMaxK * kMaxN);
  tile.k_stride = inst.transpose_b ? kMaxN : 1;
  tile.n_stride = inst.transpose_b ? 1 : kMaxK;
  float* to = tile.values.data();
  for_each_chunk(MatrixDescriptor(op.descriptor_b), inst.transpose_b, 0, inst.shape_n, 16 / matrix_bytes(inst.b_type),
                 [&](u32 address, int n, int k) {
                   float* place = to + k * tile.k_stride + n * tile.n_stride;
                   unpack_elements<16>(inst.b_type, chunk_bytes(warp, inst, address), place);
                 });
  tile.version = warp.cta->shared_version;
  tile.descriptor = op.descriptor_b;
  tile.instruction = &inst;
  return tile;
}

/// A warp's 16 rows of A, [k][16] by row_lane(). Past shape_k it may hold anything.
void load_a(Warp& warp, const WgmmaOp& op, Rows (&a)[kMaxK]) {
  const Instruction& inst = *op.instruction;
  const int width = 16 / matrix_bytes(inst.a_type), first_row = (warp.id & 3) * 16;
  if (inst.transpose_a) {  // 8 rows of one k lie together
    for_each_chunk(MatrixDescriptor(op.descriptor_a), true, first_row, first_row + 16, width,
                   [&](u32 address, int m, int k) {
                     float values[8];
                     unpack_elements<16>(inst.a_type, chunk_bytes(warp, inst, address), values);
                     for (int i = 0; i < 8; i++) a[k][row_lane(m - first_row + i)] = values[i];
                   });
  } else {
    Rows rows[kMaxK / 16][16];  // [block of k][row_lane(m)][k], then the other way round
    const auto place = [&](int m, int k) { return reinterpret_cast<float*>(&rows[k / 16][row_lane(m)]) + k % 16; };
    if (inst.a_from_registers) {
      // Over the lanes, a register is a block of 8 rows by 16 bytes of k (see exec_mma.cpp).
      for (int r = 0; r < 4; r++) {
        const u8* words = warp.registers + inst.operands[inst.a_begin + r];
        for (int row = 0; row < 8; row++)
          unpack_elements<16>(inst.a_type, words + 16 * row, place((r & 1) * 8 + row, (r >> 1) * width));
      }
    } else {
      for_each_chunk(MatrixDescriptor(op.descriptor_a), false, first_row, first_row + 16, width,
                     [&](u32 address, int m, int k) {
                       unpack_elements<16>(inst.a_type, chunk_bytes(warp, inst, address), place(m - first_row, k));
                     });
    }
    for (int k = 0; k < inst.shape_k; k += 16) {
      transpose(rows[k / 16]);
      memcpy(&a[k], rows[k / 16], sizeof rows[0]);
    }
  }
  if (inst.negate_a != inst.negate_b)
    for (int k = 0; k < inst.shape_k; k++) a[k] = -a[k];
}

/// One warp's 16 rows.
void compute(Warp& warp, const WgmmaOp& op) {
  const Instruction& inst = *op.instruction;
  Counters& counters = warp.cta->launch->counters;
  counters.matrix_operations++;
  counters.matrix_flops += 2ull * 16 * inst.shape_n * inst.shape_k;
  Rows a[kMaxK];
  alignas(64) float sums[4][kWarpSize];
  load_a(warp, op, a);
  const WgmmaTile& b = b_tile(warp, op);
  // Register 4j + 2h + o of lane 4g + q: row g + 8h, column 8j + 2q + o. f16 packs both o.
  for (int j = 0; j < inst.shape_n / 8; j++) {
    multiply_fragment(a, b.values.data() + 8 * j * b.n_stride, b.k_stride, b.n_stride, inst.shape_k, sums);
    switch (inst.accumulator) {
      case AccumulatorType::F16:
        for (int h = 0; h < 2; h++) {
          u32* slot = lanes<u32>(warp, inst.operands[2 * j + h]);
          store_half_pairs(op.accumulate ? slot : nullptr, sums[2 * h], sums[2 * h + 1], slot);
        }
        break;
      case AccumulatorType::S32:
        for (int r = 0; r < 4; r++) {
          u32* slot = lanes<u32>(warp, inst.operands[4 * j + r]);
          for (int lane = 0; lane < kWarpSize; lane++)
            slot[lane] = u32(s32(sums[r][lane])) + (op.accumulate ? slot[lane] : 0);
        }
        break;
      case AccumulatorType::F32:
        for (int r = 0; r < 4; r++) {
          float* slot = lanes<float>(warp, inst.operands[4 * j + r]);
          for (int lane = 0; lane < kWarpSize; lane++) slot[lane] = sums[r][lane] + (op.accumulate ? slot[lane] : 0.f);
        }
        break;
    }
  }
}

/// Undefined lanes of the accumulator, from undefined rows of A, columns of B and the old accumulator.
void taint(Warp& warp, const Instruction& inst, bool accumulate, const u64* rows, const u64* columns) {
  const bool tiles = rows[0] | columns[0] | columns[1] | columns[2] | columns[3];
  if (!tiles && !warp.tainted) return;
  const bool f16 = inst.accumulator == AccumulatorType::F16;
  const int first_row = (warp.id & 3) * 16;
  for (int r = 0; r < inst.definitions; r++) {
    const int j = f16 ? r / 2 : r / 4, h = f16 ? r & 1 : (r >> 1) & 1, o = f16 ? 0 : r & 1;
    u32 undefined = accumulate ? poison(warp, inst.operands[r]) : 0;
    for (int lane = 0; tiles && lane < kWarpSize; lane++) {
      const int row = first_row + (lane >> 2) + 8 * h, column = 8 * j + (lane & 3) * 2 + o;
      bool bad = rows[0] >> row & 1;
      for (int k = column; k <= column + (f16 ? 1 : 0); k++) bad |= columns[k / 64] >> (k % 64) & 1;
      if (bad) undefined |= 1u << lane;
    }
    set_poison(warp, inst.operands[r], undefined);
  }
}

u64 uniform_descriptor(Warp& warp, const Instruction& inst, int slot) {
  const u64* values = lanes<u64>(warp, slot);
  for (int lane = 1; lane < kWarpSize; lane++)
    if (values[lane] != values[0]) fail(warp, inst, "convergence", "wgmma descriptor differs between lanes");
  if (warp.tainted && poison(warp, slot)) require_defined(warp, inst, poison(warp, slot), "wgmma descriptor");
  return values[0];
}

}  // namespace

void touch_wgmma_registers(Warp& warp, const Instruction& inst) {
  if (inst.handler == exec_wgmma) return;
  for (u16 reg : inst.wgmma_registers) {
    warp.wgmma_accessed[reg] = 1;
    if (warp.wgmma_in_flight[reg])
      report(warp, inst, "wgmma-registers",
             "register of a wgmma that is still in flight (no wgmma.wait_group covers it)");
  }
}

void exec_wgmma_fence(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  auto& accessed = warp.wgmma_accessed;
  inst.idle += std::find(accessed.begin(), accessed.end(), 1) == accessed.end();
  std::fill(accessed.begin(), accessed.end(), 0);
}

void exec_wgmma(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  Cta& cta = *warp.cta;
  if ((warp.id | 3) >= cta.warp_count) fail(warp, inst, "convergence", "wgmma outside a warpgroup of four warps");
  WgmmaOp op;
  op.instruction = &inst;
  op.descriptor_a = inst.a_from_registers ? 0 : uniform_descriptor(warp, inst, inst.operands[inst.a_begin]);
  op.descriptor_b = uniform_descriptor(warp, inst, inst.operands[inst.b_begin]);
  op.accumulate = inst.scale_d >= 0 ? predicate(warp, inst.scale_d) & 1 : inst.scale_d == kScaleDOne;
  op.group = warp.wgmma_group;

  for (u16 reg : inst.wgmma_registers) {
    if (warp.wgmma_accessed[reg] && cta.launch->options.check_proxies)
      report(warp, inst, "proxy", "registers were accessed after the last wgmma.fence (or there was none)");
    warp.wgmma_in_flight[reg] = 1;
  }
  u64 rows[4] = {}, columns[4] = {};
  const int a_elements = 16 / matrix_bytes(inst.a_type), b_elements = 16 / matrix_bytes(inst.b_type);
  const int first_row = (warp.id & 3) * 16;
  if (tracks_shared(*cta.launch)) {
    // The warpgroup reads the tiles together: every warp is booked with all of them.
    if (!inst.a_from_registers) check_tile(warp, inst, op.descriptor_a, inst.transpose_a, 0, 64, a_elements, rows);
    check_tile(warp, inst, op.descriptor_b, inst.transpose_b, 0, inst.shape_n, b_elements, columns);
  }
  if (inst.a_from_registers && warp.tainted)
    for (int r = 0; r < 4; r++)
      for (int lane = 0; lane < kWarpSize; lane++)
        if (poison(warp, inst.operands[inst.a_begin + r]) >> lane & 1)
          rows[0] |= 1ull << (first_row + (lane >> 2) + (r & 1) * 8);
  if (cta.launch->options.check_undefined) taint(warp, inst, op.accumulate, rows, columns);

  if (cta.launch->options.async == AsyncMode::Eager) {
    compute(warp, op);
    op.done = true;
  }
  warp.wgmma.push_back(op);
}

void exec_wgmma_commit(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  inst.idle += warp.wgmma.empty() || warp.wgmma.back().group != warp.wgmma_group;
  warp.wgmma_group++;
}

/// A wgmma belongs to its warpgroup: it has completed for one warp when it has for all four, which is only
/// possible once all of them have issued it.
void exec_wgmma_wait(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  const s64 covered = s64(warp.wgmma_group) - inst.immediate;  // groups below this number
  Warp* group = warpgroup(warp);
  for (int k = 0; k < 4; k++)
    if (s64(group[k].wgmma_group) < covered) {
      if (group[k].state == WarpState::Done)
        fail(warp, inst, "convergence", format("wgmma of a warpgroup whose warp %d has ended", group[k].id));
      warp.retry = warp.yielded = true;
      return;
    }
  // Operation by operation, so that the four warps find its tile of B converted.
  size_t next[4] = {};
  for (bool more = true; more;) {
    more = false;
    for (int k = 0; k < 4; k++) {
      auto& pending = group[k].wgmma;
      size_t& at = next[k];
      while (at < pending.size() && pending[at].done) at++;
      if (at == pending.size() || s64(pending[at].group) >= covered) continue;
      compute(group[k], pending[at]);
      pending[at].done = true;
      more = true;
    }
  }
  auto& queue = warp.wgmma;
  inst.idle += !std::erase_if(queue, [&](const WgmmaOp& op) { return s64(op.group) < covered; });
  if (covered > 0) warp.view.seen.raise(group->engine(AgentKind::Wgmma), u32(covered));
  std::fill(warp.wgmma_in_flight.begin(), warp.wgmma_in_flight.end(), 0);
  for (const WgmmaOp& op : queue)
    for (u16 reg : op.instruction->wgmma_registers) warp.wgmma_in_flight[reg] = 1;
}

bool perform_wgmma(Warp& warp) {
  for (WgmmaOp& op : warp.wgmma)
    if (!op.done) {
      compute(warp, op);
      op.done = true;
      return true;
    }
  return false;
}

}  // namespace ptxemu
