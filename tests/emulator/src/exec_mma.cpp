// mma.sync, ldmatrix, stmatrix, movmatrix.
//
// Products are accumulated in fp32 in k order and added to C afterwards. Hardware rounds differently, so
// results are compared with a tolerance.
#include "handlers.h"
#include "matrix_formats.h"
#include "memory.h"

namespace ptxemu {

// In every fragment lane = 4 * group + quad. A register holds 4 / bytes neighbouring elements along k.
// Register r of A covers row group + 8 * (r & 1) and k from quad * perRegister + (r >> 1) * 4 * perRegister;
// register r of B covers column group and the k of r * 4 * perRegister likewise.

/// m16n8k*. operands: D, A, B, C registers one after the other.
void exec_mma(Warp& warp, const Instruction& inst) {
  require_full_warp(warp, inst);
  Counters& counters = warp.cta->launch->counters;
  counters.matrix_operations++;
  counters.matrix_flops += 2ull * 16 * 8 * inst.shape_k;
  const int K = inst.shape_k, per_register = 4 / matrix_bytes(inst.a_type);
  const bool f16_accumulator = inst.accumulator == AccumulatorType::F16;
  const int a_count = inst.b_begin - inst.a_begin, b_count = inst.c_begin - inst.b_begin;
  const int c_count = f16_accumulator ? 2 : 4;
  float a[16][32], b[32][8], c[16][8], values[4];
  s32 c_integer[16][8];
  u32 undefined_rows = 0, undefined_columns = 0;

  for (int r = 0; r < a_count; r++) {
    const u32* source = lanes<u32>(warp, inst.operands[inst.a_begin + r]);
    const u32 undefined = warp.tainted ? poison(warp, inst.operands[inst.a_begin + r]) : 0;
    for (int lane = 0; lane < kWarpSize; lane++) {
      const int row = (lane >> 2) + (r & 1) * 8, k0 = (lane & 3) * per_register + (r >> 1) * 4 * per_register;
      unpack_elements(inst.a_type, source[lane], values);
      for (int i = 0; i < per_register; i++) a[row][k0 + i] = values[i];
      if (undefined >> lane & 1) undefined_rows |= 1u << row;
    }
  }
  for (int r = 0; r < b_count; r++) {
    const u32* source = lanes<u32>(warp, inst.operands[inst.b_begin + r]);
    const u32 undefined = warp.tainted ? poison(warp, inst.operands[inst.b_begin + r]) : 0;
    for (int lane = 0; lane < kWarpSize; lane++) {
      const int column = lane >> 2, k0 = (lane & 3) * per_register + r * 4 * per_register;
      unpack_elements(inst.b_type, source[lane], values);
      for (int i = 0; i < per_register; i++) b[k0 + i][column] = values[i];
      if (undefined >> lane & 1) undefined_columns |= 1u << column;
    }
  }
  for (int r = 0; r < c_count; r++) {
    const int slot = inst.operands[inst.c_begin + r];
    for (int lane = 0; lane < kWarpSize; lane++) {
      const int group = lane >> 2, quad = lane & 3;
      if (f16_accumulator) {
        const u32 pair = lanes<u32>(warp, slot)[lane];
        c[group + r * 8][quad * 2] = half_to_float(pair);
        c[group + r * 8][quad * 2 + 1] = half_to_float(pair >> 16);
      } else if (inst.accumulator == AccumulatorType::S32) {
        c_integer[group + (r >> 1) * 8][quad * 2 + (r & 1)] = lanes<s32>(warp, slot)[lane];
      } else {
        c[group + (r >> 1) * 8][quad * 2 + (r & 1)] = lanes<float>(warp, slot)[lane];
      }
    }
  }
  u32 undefined_result[4] = {};
  if (warp.tainted)
    for (int r = 0; r < c_count; r++) {
      undefined_result[r] = poison(warp, inst.operands[inst.c_begin + r]);
      for (int lane = 0; lane < kWarpSize; lane++) {
        const int row = (lane >> 2) + (f16_accumulator ? r * 8 : (r >> 1) * 8), column = (lane & 3) * 2;
        const u32 columns = f16_accumulator ? 3u << column : 1u << (column + (r & 1));
        if ((undefined_rows >> row & 1) || (undefined_columns & columns)) undefined_result[r] |= 1u << lane;
      }
    }

  float sum[16][8];
  for (int m = 0; m < 16; m++) {
    for (int n = 0; n < 8; n++) sum[m][n] = 0;
    for (int k = 0; k < K; k++)
      for (int n = 0; n < 8; n++) sum[m][n] += a[m][k] * b[k][n];
  }

  for (int r = 0; r < c_count; r++) {
    const int slot = inst.operands[r];
    for (int lane = 0; lane < kWarpSize; lane++) {
      const int group = lane >> 2, quad = lane & 3;
      if (f16_accumulator) {
        const int row = group + r * 8;
        const auto half = [&](int n) { return u32(float_to_half(c[row][n] + sum[row][n])); };
        lanes<u32>(warp, slot)[lane] = half(quad * 2) | half(quad * 2 + 1) << 16;
        continue;
      }
      const int row = group + (r >> 1) * 8, column = quad * 2 + (r & 1);
      if (inst.accumulator == AccumulatorType::S32) {
        const s64 exact = s64(c_integer[row][column]) + s64(sum[row][column]);
        const s64 clamped = exact > INT32_MAX ? INT32_MAX : exact < INT32_MIN ? INT32_MIN : exact;
        lanes<s32>(warp, slot)[lane] = inst.saturate ? s32(clamped) : s32(exact);
      } else {
        lanes<float>(warp, slot)[lane] = c[row][column] + sum[row][column];
      }
    }
    set_poison(warp, slot, undefined_result[r]);
  }
}

// Lane 8 * q + r gives the address of row r of 8x8 matrix q; each lane holds, of every matrix, two
// neighbouring elements of row lane / 4 (of a column if .trans).

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
  require_full_warp(warp, inst);
  check_address(warp, inst, inst.address);
  u16 rows[32][8];
  u32 address[32], undefined_rows = 0;
  for (int lane = 0; lane < 8 * inst.matrix_count; lane++) {
    address[lane] = shared_address(lane_address(warp, inst.address, lane));
    bool defined = true;
    memcpy(rows[lane], read_shared(warp, inst, address[lane], 16, defined), 16);
    if (!defined) undefined_rows |= 1u << lane;
  }
  count_matrix_rows(warp, address, inst.matrix_count);
  for (int q = 0; q < inst.matrix_count; q++) {
    u32* destination = lanes<u32>(warp, inst.operands[q]);
    const u16(*matrix)[8] = rows + q * 8;
    u32 undefined = 0;
    for (int lane = 0; lane < kWarpSize; lane++) {
      const int r = lane >> 2, c = (lane & 3) * 2;
      destination[lane] = inst.transposed ? matrix[c][r] | u32(matrix[c + 1][r]) << 16
                                          : matrix[r][c] | u32(matrix[r][c + 1]) << 16;
      const u32 touched = (inst.transposed ? 3u << c : 1u << r) << (q * 8);
      if (undefined_rows & touched) undefined |= 1u << lane;
    }
    if (warp.cta->launch->options.check_undefined) set_poison(warp, inst.operands[q], undefined);
  }
}

void exec_stmatrix(Warp& warp, const Instruction& inst) {
  require_full_warp(warp, inst);
  check_address(warp, inst, inst.address);
  u16 rows[32][8];
  u32 address[32], undefined_rows = 0;
  for (int q = 0; q < inst.matrix_count; q++) {
    const u32* source = lanes<u32>(warp, inst.operands[q]);
    const u32 undefined = warp.tainted ? poison(warp, inst.operands[q]) : 0;
    u16(*matrix)[8] = rows + q * 8;
    for (int lane = 0; lane < kWarpSize; lane++) {
      const int r = lane >> 2, c = (lane & 3) * 2;
      if (undefined >> lane & 1) undefined_rows |= (inst.transposed ? 3u << c : 1u << r) << (q * 8);
      if (inst.transposed) {
        matrix[c][r] = source[lane];
        matrix[c + 1][r] = source[lane] >> 16;
      } else {
        matrix[r][c] = source[lane];
        matrix[r][c + 1] = source[lane] >> 16;
      }
    }
  }
  for (int lane = 0; lane < 8 * inst.matrix_count; lane++) {
    address[lane] = shared_address(lane_address(warp, inst.address, lane));
    memcpy(write_shared(warp, inst, address[lane], 16, !(undefined_rows >> lane & 1)), rows[lane], 16);
  }
  count_matrix_rows(warp, address, inst.matrix_count);
}

void exec_movmatrix(Warp& warp, const Instruction& inst) {
  require_full_warp(warp, inst);
  u16 matrix[8][8];
  const u32* source = lanes<u32>(warp, inst.operands[1]);
  for (int lane = 0; lane < kWarpSize; lane++) {
    matrix[lane >> 2][(lane & 3) * 2] = source[lane];
    matrix[lane >> 2][(lane & 3) * 2 + 1] = source[lane] >> 16;
  }
  const u32 undefined = warp.tainted && poison(warp, inst.operands[1]) ? kFullMask : 0;
  for (int lane = 0; lane < kWarpSize; lane++) {
    const int r = lane >> 2, c = (lane & 3) * 2;
    lanes<u32>(warp, inst.operands[0])[lane] = matrix[c][r] | u32(matrix[c + 1][r]) << 16;
  }
  set_poison(warp, inst.operands[0], undefined);
}

}  // namespace ptxemu
