// mma.sync, ldmatrix, stmatrix, movmatrix.
//
// Products are accumulated in fp32 in k order and added to C afterwards. Hardware rounds differently, so
// results are compared with a tolerance.
#include "handlers.h"
#include "matrix_formats.h"
#include "memory.h"

namespace ptxemu {

// In every fragment lane = 4 * group + quad, and a register holds 4 / bytes neighbouring elements along k. Taken
// over the lanes, a register of A or B is therefore a block of 8 rows (of A; columns of B) by 16 / bytes elements of
// k, row by row. Register r of A is the block at rows 8 * (r & 1), k block r >> 1; register r of B the k block r.

namespace {

constexpr int kRows = 16, kColumns = 8;

/// Rows (of A) or columns (of B) that hold an undefined element.
u32 undefined_lines(Warp& warp, const Instruction& inst, int begin, int count, bool is_a) {
  u32 lines = 0;
  for (int r = 0; warp.tainted && r < count; r++) {
    const u32 undefined = poison(warp, inst.operands[begin + r]);
    for (int lane = 0; lane < kWarpSize; lane++)
      if (undefined >> lane & 1) lines |= 1u << ((lane >> 2) + (is_a ? (r & 1) * 8 : 0));
  }
  return lines;
}

/// Half of the 32 lanes of a register.
typedef float Half __attribute__((vector_size(64), aligned(64)));

/// Adds the products of one element of k of the four (of each quad) that a pair of registers holds. Lane 4 * g + q has
/// k = q of row g of A, and of column g of B; the accumulator of lane 4 * g + q is that of row g, column 2 * q + o.
template <int Q>
void multiply_element(const Half (*a)[2], const Half* b, Half (*total)[2][2]) {
  // Columns o, 2 + o, 4 + o, 6 + o in the four lanes of every quad.
  const Half even = __builtin_shufflevector(b[0], b[1], Q, 8 + Q, 16 + Q, 24 + Q, Q, 8 + Q, 16 + Q, 24 + Q, Q, 8 + Q,
                                            16 + Q, 24 + Q, Q, 8 + Q, 16 + Q, 24 + Q);
  const Half odd = __builtin_shufflevector(b[0], b[1], 4 + Q, 12 + Q, 20 + Q, 28 + Q, 4 + Q, 12 + Q, 20 + Q, 28 + Q,
                                           4 + Q, 12 + Q, 20 + Q, 28 + Q, 4 + Q, 12 + Q, 20 + Q, 28 + Q);
  for (int h = 0; h < 2; h++)
    for (int half = 0; half < 2; half++) {
      const Half rows = __builtin_shufflevector(a[h][half], a[h][half], Q, Q, Q, Q, 4 + Q, 4 + Q, 4 + Q, 4 + Q, 8 + Q,
                                                8 + Q, 8 + Q, 8 + Q, 12 + Q, 12 + Q, 12 + Q, 12 + Q);
      total[h][0][half] += rows * even;
      total[h][1][half] += rows * odd;
    }
}

/// The products as accumulator registers: sums[2 * h + o][lane]; k ascending.
void multiply_registers(Warp& warp, const Instruction& inst, float (*sums)[kWarpSize]) {
  const int elements = 4 / matrix_bytes(inst.a_type);
  Half total[2][2][2] = {};
  for (int r = 0; r < inst.c_begin - inst.b_begin; r++) {
    Half a[4][2][2], b[4][2];  // by element of a register
    for (int e = 0; e < elements; e++) {
      for (int h = 0; h < 2; h++)
        unpack_lanes(inst.a_type, lanes<u32>(warp, inst.operands[inst.a_begin + 2 * r + h]), e,
                     reinterpret_cast<float*>(a[e][h]));
      unpack_lanes(inst.b_type, lanes<u32>(warp, inst.operands[inst.b_begin + r]), e, reinterpret_cast<float*>(b[e]));
    }
    for (int e = 0; e < elements; e++) multiply_element<0>(a[e], b[e], total);
    for (int e = 0; e < elements; e++) multiply_element<1>(a[e], b[e], total);
    for (int e = 0; e < elements; e++) multiply_element<2>(a[e], b[e], total);
    for (int e = 0; e < elements; e++) multiply_element<3>(a[e], b[e], total);
  }
  memcpy(sums, total, sizeof total);
}

/// Undefined lanes of accumulator register r.
u32 undefined_accumulator(Warp& warp, const Instruction& inst, int r, u32 rows, u32 columns) {
  const bool f16 = inst.accumulator == AccumulatorType::F16;
  u32 undefined = poison(warp, inst.operands[inst.c_begin + r]);
  for (int lane = 0; lane < kWarpSize; lane++) {
    const int row = (lane >> 2) + (f16 ? r * 8 : (r >> 1) * 8), column = (lane & 3) * 2;
    const u32 touched = f16 ? 3u << column : 1u << (column + (r & 1));
    if ((rows >> row & 1) || (columns & touched)) undefined |= 1u << lane;
  }
  return undefined;
}

}  // namespace

/// m16n8k*. operands: D, A, B, C registers one after the other.
void exec_mma(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  Counters& counters = warp.cta->launch->counters;
  counters.matrix_operations++;
  counters.matrix_flops += 2ull * kRows * kColumns * inst.shape_k;
  const u32 rows = undefined_lines(warp, inst, inst.a_begin, inst.b_begin - inst.a_begin, true);
  const u32 columns = undefined_lines(warp, inst, inst.b_begin, inst.c_begin - inst.b_begin, false);
  alignas(64) float sums[4][kWarpSize];
  multiply_registers(warp, inst, sums);

  // Accumulator register 2h + o (f16: h, both o) of a lane: row group + 8h, column 2 * quad + o.
  for (int r = 0; r < inst.definitions; r++) {
    const bool f16 = inst.accumulator == AccumulatorType::F16;
    const u32 undefined = warp.tainted ? undefined_accumulator(warp, inst, r, rows, columns) : 0;
    const float *sum = sums[f16 ? 2 * r : r], *odd = sums[(2 * r + 1) & 3];
    const int from = inst.operands[inst.c_begin + r], to = inst.operands[r];
    if (f16) {
      store_half_pairs(lanes<u32>(warp, from), sum, odd, lanes<u32>(warp, to));
    } else if (inst.accumulator == AccumulatorType::S32) {
      for (int lane = 0; lane < kWarpSize; lane++) {
        const s64 exact = s64(lanes<s32>(warp, from)[lane]) + s64(sum[lane]);
        const s64 clamped = exact > INT32_MAX ? INT32_MAX : exact < INT32_MIN ? INT32_MIN : exact;
        lanes<s32>(warp, to)[lane] = inst.saturate ? s32(clamped) : s32(exact);
      }
    } else {
      for (int lane = 0; lane < kWarpSize; lane++)
        lanes<float>(warp, to)[lane] = lanes<float>(warp, from)[lane] + sum[lane];
    }
    set_poison(warp, to, undefined);
  }
}

// Lane 8 * q + r gives the address of row r of 8x8 matrix q; each lane holds, of every matrix, two
// neighbouring elements of row lane / 4 (of a column if .trans).

namespace {

/// An 8x8 matrix of 16-bit elements. Row by row, it is what the 32 lanes hold, two elements each.
using Matrix = u16[8][8];

/// Interleaving the upper and the lower half of the rows three times transposes.
void transpose(Matrix& matrix) {
  typedef u16 Row __attribute__((vector_size(16)));
  Row rows[8], mixed[8];
  memcpy(rows, matrix, sizeof rows);
  for (int pass = 0; pass < 3; pass++) {
    for (int r = 0; r < 4; r++) {
      mixed[2 * r] = __builtin_shufflevector(rows[r], rows[r + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      mixed[2 * r + 1] = __builtin_shufflevector(rows[r], rows[r + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    memcpy(rows, mixed, sizeof rows);
  }
  memcpy(matrix, rows, sizeof rows);
}

/// The lanes that hold elements of some of the rows in memory.
u32 lanes_of_rows(u32 rows, bool transposed) {
  u32 touched = 0;
  for (int lane = 0; lane < kWarpSize; lane++)
    if (rows & (transposed ? 3u << (lane & 3) * 2 : 1u << (lane >> 2))) touched |= 1u << lane;
  return touched;
}

}  // namespace

static void count_matrix_rows(Warp& warp, const u32* address, int count) {
  if (!warp.cta->launch->options.count_memory) return;
  Counters& counters = warp.cta->launch->counters;
  counters.shared_requests++;
  for (int q = 0; q < count; q++) {  // one wavefront a matrix if its rows lie in different 16-byte banks
    int uses[8] = {}, worst = 0;
    for (int r = 0; r < 8; r++) worst = std::max(worst, ++uses[address[q * 8 + r] / 16 % 8]);
    counters.shared_wavefronts += worst;
  }
}

void exec_ldmatrix(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  check_address(warp, inst, inst.address);
  Matrix matrices[4];
  u32 address[32], undefined_rows = 0;
  SharedQuads quads(warp, inst);
  for (int lane = 0; lane < 8 * inst.matrix_count; lane++) {
    address[lane] = shared_address(lane_address(warp, inst.address, lane));
    bool defined = true;
    memcpy(matrices[lane / 8][lane % 8], quads.read(address[lane], defined), 16);
    if (!defined) undefined_rows |= 1u << lane;
  }
  count_matrix_rows(warp, address, inst.matrix_count);
  for (int q = 0; q < inst.matrix_count; q++) {
    if (inst.transposed) transpose(matrices[q]);
    memcpy(lanes<u32>(warp, inst.operands[q]), matrices[q], sizeof(Matrix));
    if (!warp.cta->launch->options.check_undefined) continue;
    const u32 rows = undefined_rows >> (q * 8) & 0xff;
    set_poison(warp, inst.operands[q], rows ? lanes_of_rows(rows, inst.transposed) : 0);
  }
}

void exec_stmatrix(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  check_address(warp, inst, inst.address);
  Matrix matrices[4];
  u32 address[32], undefined_rows = 0;
  for (int q = 0; q < inst.matrix_count; q++) {
    memcpy(matrices[q], lanes<u32>(warp, inst.operands[q]), sizeof(Matrix));
    if (inst.transposed) transpose(matrices[q]);
    const u32 undefined = warp.tainted ? poison(warp, inst.operands[q]) : 0;
    for (int r = 0; undefined && r < 8; r++)
      if (undefined & lanes_of_rows(1u << r, inst.transposed)) undefined_rows |= 1u << (q * 8 + r);
  }
  for (int lane = 0; lane < 8 * inst.matrix_count; lane++) {
    address[lane] = shared_address(lane_address(warp, inst.address, lane));
    const u8* row = reinterpret_cast<const u8*>(matrices[lane / 8][lane % 8]);
    memcpy(write_shared(warp, inst, address[lane], 16, !(undefined_rows >> lane & 1), row), row, 16);
  }
  count_matrix_rows(warp, address, inst.matrix_count);
}

void exec_movmatrix(Warp& warp, const Instruction& inst) {
  if (!require_full_warp(warp, inst)) return;
  Matrix matrix;
  memcpy(matrix, lanes<u32>(warp, inst.operands[1]), sizeof matrix);
  transpose(matrix);
  memcpy(lanes<u32>(warp, inst.operands[0]), matrix, sizeof matrix);
  const u32 undefined = warp.tainted && poison(warp, inst.operands[1]) ? kFullMask : 0;
  set_poison(warp, inst.operands[0], undefined);
}

}  // namespace ptxemu
