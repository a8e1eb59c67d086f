// What a warp has of some query rows: their scores against a block of keys, and the state that they leave behind.
#pragma once
#include "chunkattn/mask/visible.cuh"
#include "chunkattn/score/score_mod.cuh"
#include "chunkattn/seq/task.cuh"
#include "chunkattn/softmax/state.cuh"
#include "kernels/attention/params.cuh"

namespace chunkattn {

// kTileRows rows and kTileKeys keys, all in registers. Lane l holds, of every 16x8 tile, rows l / 4 and l / 4 + 8 and
// columns 2 (l % 4), 2 (l % 4) + 1: where mma.sync and, in each of its four warps, wgmma leave sums.
template <class Config, int kTileRows, int kTileKeys>
struct RowTile {
  static constexpr int kM = kTileRows / 16, kN = kTileKeys / 8, kV = Config::kHeadDimV / 8;
  static constexpr int kRows = 2 * kM;  // of a lane

  float out[kM][kV][4];
  float scores[kM][kN][4];
  SoftmaxRows<kRows> softmax;
  const int lane;

  __device__ explicit RowTile(int lane) : lane(lane) { clear(); }

  __device__ void clear() {
    softmax = SoftmaxRows<kRows>();
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int v = 0; v < kV; ++v)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][v][i] = 0.0f;
  }

  // Row of the warp's rows that this lane's `row` (0 … kRows - 1) is, and the key of a column.
  __device__ int row_of(int row) const { return row / 2 * 16 + row % 2 * 8 + lane / 4; }
  __device__ int key_of(int n, int i) const { return n * 8 + lane % 4 * 2 + i % 2; }

  // Soft-cap, ALiBi, scales of tokens. `first_row`: packed row of the warp's first one; `key_scales` in shared memory.
  __device__ void transform(const ScoreMod& mod, const KernelParams& p, const Task& task, int32_t first_row,
                            int32_t first_key, const float* key_scales, const float* query_scales) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const PackedRow packed(task, p.group, first_row + row_of(row));
      const bool inside = first_row + row_of(row) < task.row_end;
      const float slope = mod.has_slopes && inside ? alibi_slope(p.attention, task.request, packed.q_head) : 0.0f;
      const float query_scale = Config::kQuantised ? query_scales[row_of(row)] : 1.0f;
      const int32_t position = packed.position(task);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float key_scale = mod.has_key_scales ? key_scales[key_of(n, i)] * query_scale : query_scale;
          float& score = scores[row / 2][n][row % 2 * 2 + i];
          score = mod.apply(score, key_scale, slope, first_key + key_of(n, i) - position);
        }
    }
  }

  // -inf where a row does not see a key.
  __device__ void hide(const VisibleKeys& visible, const KernelParams& p, const Task& task, int32_t first_row,
                       int32_t first_key) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const PackedRow packed(task, p.group, first_row + row_of(row));
      const KeyRange range = visible.range(packed.position(task));
      const bool inside = first_row + row_of(row) < task.row_end;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t key = first_key + key_of(n, i);
          bool sees = range.holds(key);
          if (visible.has_tree() && sees && inside) sees = visible.tree_shows(packed.token_in_request, key);
          if (!sees) scores[row / 2][n][row % 2 * 2 + i] = -INFINITY;
        }
    }
  }
};

}  // namespace chunkattn
