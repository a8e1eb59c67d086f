// What a warp computes: some query rows against some keys, all in registers.
#pragma once
#include "chunkattn/kv/widen.cuh"
#include "chunkattn/mask/visible.cuh"
#include "chunkattn/mma/multiply.cuh"
#include "chunkattn/mma/shared_tile.cuh"
#include "chunkattn/score/score_mod.cuh"
#include "chunkattn/seq/task.cuh"
#include "chunkattn/softmax/state.cuh"
#include "kernels/attention_sm80/config.h"
#include "kernels/attention_sm80/params.cuh"

namespace chunkattn::sm80 {

// Lane l holds, of every 16x8 tile, rows l / 4 and l / 4 + 8 and columns 2 (l % 4), 2 (l % 4) + 1.
template <class Config, class Geometry>
struct WarpTile {
  static constexpr DType kCompute = Config::kCompute;
  static constexpr int kM = Geometry::kWarpRows / 16, kN = Geometry::kWarpKeys / 8, kV = Config::kHeadDimV / 8;
  static constexpr int kRows = 2 * kM;  // of a lane

  float out[kM][kV][4];
  float scores[kM][kN][4];
  uint32_t weights[kM][kN][2];
  SoftmaxRows<kRows> softmax;
  const int lane;

  __device__ explicit WarpTile(int lane) : lane(lane) { clear(); }

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

  // scores = Q K^T.
  __device__ void multiply_keys(const FragmentReader<Config::kQueryBytes>& queries,
                                const FragmentReader<Config::kKeyBytes>& keys) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0f;
#pragma unroll
    for (int d = 0; d < Config::kHeadDim / 16; d += kKeySteps) {
      uint32_t q[kKeySteps][kM][4];
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step)
#pragma unroll
        for (int m = 0; m < kM; ++m) queries.load(q[step][m], m * 16, 2 * (d + step));
#pragma unroll
      for (int n = 0; n < kN; n += kKeyTiles) {
        uint32_t k[4];
        if constexpr (Config::kQuantised) {
          keys.load(k, n * 8, d);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const WidePairs wide = widen<Config::kKvType>(k[j]);
#pragma unroll
            for (int m = 0; m < kM; ++m)
              multiply_add<kCompute>(scores[m][n + j / kKeySteps], q[j % kKeySteps][m], wide.even, wide.odd);
          }
        } else {
          keys.load(k, n * 8, 2 * d);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            multiply_add<kCompute>(scores[m][n], q[0][m], k[0], k[1]);
            multiply_add<kCompute>(scores[m][n + 1], q[0][m], k[2], k[3]);
          }
        }
      }
    }
  }

  // Where this lane reads K. One read brings four matrices: of 16-bit elements two tiles of 8 keys, 16 elements deep;
  // of 8-bit elements four tiles of as many elements, or, where a warp has 16 keys only, two tiles twice as deep.
  static constexpr int kKeySteps = Config::kQuantised && kN < 4 ? 2 : 1;
  static constexpr int kKeyTiles = Config::kQuantised && kN >= 4 ? 4 : 2;
  __device__ static FragmentReader<Config::kKeyBytes> key_reader(uint32_t keys, int lane) {
    using Reader = FragmentReader<Config::kKeyBytes>;
    return kKeyTiles == 4 ? Reader::rows_of_chunk(keys, lane) : Reader::chunks_then_rows(keys, lane);
  }

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

  // One step of the online softmax: weights = exp2(scores * factor - max); sums of older keys shrink.
  __device__ void softmax_step(float factor, const float* query_scales, const float* value_scales) {
    bool moved = false;
    float shrink[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float row_factor = Config::kQuantised && query_scales ? factor * query_scales[row_of(row)] : factor;
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < kN; ++n)
        top = fmaxf(top, fmaxf(scores[row / 2][n][row % 2 * 2], scores[row / 2][n][row % 2 * 2 + 1]));
      shrink[row] = softmax.raise(row, top, row_factor);
      moved |= shrink[row] != 1.0f;
      const float shift = finite_max(softmax.max[row]);
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float pair[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          pair[i] = ptx::exp2_approximate(fmaf(scores[row / 2][n][row % 2 * 2 + i], row_factor, -shift));
          sum += pair[i];
          if (value_scales) pair[i] *= value_scales[key_of(n, i)] * Config::kWeightUnit;
        }
        weights[row / 2][n][row % 2] = Multiply<kCompute>::pack(pair[0], pair[1]);
      }
      softmax.sum[row] += sum;
    }
    if (__any_sync(0xffffffff, moved)) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int v = 0; v < kV; ++v)
#pragma unroll
          for (int i = 0; i < 4; ++i) out[m][v][i] *= shrink[2 * m + i / 2];
    }
  }

  // out += weights V.
  __device__ void multiply_values(const FragmentReader<Config::kValueBytes>& values) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
      uint32_t p[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[m][i] = weights[m][2 * k + i / 2][i % 2];
      constexpr int kColumns = Config::kQuantised ? 4 : 2;  // tiles of 8 columns that one read of V brings
#pragma unroll
      for (int v = 0; v < kV; v += kColumns) {
        uint32_t x[4];
        if constexpr (Config::kQuantised) {
          values.load_transposed(x, k * 16, v / 2);
#pragma unroll
          for (int j = 0; j < 2; ++j) {  // matrices: upper and lower eight keys of 16 columns, then of the next 16
            const WidePairs upper = widen<Config::kKvType>(x[2 * j]), lower = widen<Config::kKvType>(x[2 * j + 1]);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              multiply_add<kCompute>(out[m][v + 2 * j], p[m], upper.even, lower.even);
              multiply_add<kCompute>(out[m][v + 2 * j + 1], p[m], upper.odd, lower.odd);
            }
          }
        } else {
          values.load_transposed(x, k * 16, v);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            multiply_add<kCompute>(out[m][v], p[m], x[0], x[1]);
            multiply_add<kCompute>(out[m][v + 1], p[m], x[2], x[3]);
          }
        }
      }
    }
  }

  // Leaves the state in shared memory: sums of values [rows, kStagePitch], then a maximum and a sum of weights a row.
  __device__ void stage(float* values, float* max, float* sum, int first_row) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int at = first_row + row_of(row);
      const float total = softmax.total(row);
      if (lane % 4 == 0) max[at] = softmax.max[row], sum[at] = total;
      float* target = values + at * Config::kStagePitch + lane % 4 * (Config::kQuantised ? 4 : 2);
      const int i = row % 2 * 2;
      if constexpr (Config::kQuantised) {
#pragma unroll
        for (int v = 0; v < kV; v += 2) {  // columns lie in even_odd_column() order
          const float (&even)[4] = out[row / 2][v], (&odd)[4] = out[row / 2][v + 1];
          *reinterpret_cast<float4*>(target + v * 8) = make_float4(even[i], odd[i], even[i + 1], odd[i + 1]);
        }
      } else {
#pragma unroll
        for (int v = 0; v < kV; ++v)
          *reinterpret_cast<float2*>(target + v * 8) = make_float2(out[row / 2][v][i], out[row / 2][v][i + 1]);
      }
    }
  }
};

}  // namespace chunkattn::sm80
