// What a warp has of some query rows: their scores against a block of keys, and the state that they leave behind.
#pragma once
#include "chunkattn/mask/visible.cuh"
#include "chunkattn/mma/multiply.cuh"
#include "chunkattn/score/score_mod.cuh"
#include "chunkattn/seq/task.cuh"
#include "chunkattn/softmax/state.cuh"
#include "kernels/attention/params.cuh"

namespace chunkattn {

// What one packed row sees.
class RowMask {
 public:
  __device__ RowMask(const VisibleKeys& visible, const KernelParams& p, const Task& task, int32_t row) {
    const PackedRow packed(task, p.group, row);
    range_ = visible.range(packed.position(task));
    token_ = packed.token_in_request;
    inside_ = row < task.row_end;  // others have no words in the tree mask
  }
  __device__ bool sees(const VisibleKeys& visible, int32_t key) const {
    bool sees = range_.holds(key);
    if (visible.has_tree() && sees && inside_) sees = visible.tree_shows(token_, key);
    return sees;
  }

 private:
  KeyRange range_;
  int32_t token_;
  bool inside_;
};

// kTileRows rows and kTileKeys keys, all in registers. Lane l holds, of every 16x8 tile, rows l / 4 and l / 4 + 8 and
// columns 2 (l % 4), 2 (l % 4) + 1: where mma.sync and, in each of its four warps, wgmma leave sums.
template <class Config, int kTileRows, int kTileKeys>
struct RowTile {
  static constexpr int kM = kTileRows / 16, kN = kTileKeys / 8, kV = Config::kHeadDimV / 8;
  static constexpr int kRows = 2 * kM;  // of a lane

  float out[kM][kV][4];
  float scores[kM][kN][4];
  // Operand A of the product with V: of 16 rows and 16 keys what mma.sync and wgmma take. `rest`: what rounding took
  // off.
  uint32_t weights[kM][kN / 2][4], rest[kM][kN / 2][4];
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
      const float query_scale = Config::kScaledQueries ? query_scales[row_of(row)] : 1.0f;
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

  // What this lane's `row` sees.
  __device__ RowMask mask(int row, const VisibleKeys& visible, const KernelParams& p, const Task& task,
                          int32_t first_row) const {
    return RowMask(visible, p, task, first_row + row_of(row));
  }

  // -inf where a row does not see a key.
  __device__ void hide(const VisibleKeys& visible, const KernelParams& p, const Task& task, int32_t first_row,
                       int32_t first_key) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const RowMask shown = mask(row, visible, p, task, first_row);
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (!shown.sees(visible, first_key + key_of(n, i))) scores[row / 2][n][row % 2 * 2 + i] = -INFINITY;
    }
  }

  // By how much raise_maxima() shrank sums of values, if it was called.
  struct Raised {
    float shrink[kRows];

    __device__ Raised() {
#pragma unroll
      for (int row = 0; row < kRows; ++row) shrink[row] = 1.0f;
    }
  };

  // One step of the online softmax: scores become the weights of V, exp2(score * factor - max), times the scales of V's
  // tokens; sums of older keys shrink. kSplitScaled: weights that carry a scale leave a `rest` as well, which the
  // product with V must take.
  template <bool kSplitScaled = false>
  __device__ void softmax_step(float factor, const float* query_scales, const float* value_scales,
                               const Raised& raised) {
    float shrink[kRows];
    weigh(factor, query_scales, value_scales, shrink, raised);
    round_weights<kSplitScaled>(value_scales);
    shrink_sums(shrink);
  }

  // The part of softmax_step() that concerns sums of older values, before it; it then finds nothing to shrink but sums
  // of weights, by what is noted here: rounded once, they have the same bits as without this.
  __device__ void raise_maxima(float factor, const float* query_scales, Raised& raised) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) raised.shrink[row] = raise(row, factor_of(row, factor, query_scales));
    shrink_sums(raised.shrink);
  }

 protected:
  // Scores become weights, not rounded yet. `shrink`: by how much sums of older keys do.
  __device__ void weigh(float factor, const float* query_scales, const float* value_scales, float (&shrink)[kRows],
                        const Raised& raised = Raised()) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float row_factor = factor_of(row, factor, query_scales);
      shrink[row] = raise(row, row_factor);
      float sum;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[row / 2][n][row % 2 * 2 + i];
          score = ptx::exp2_approximate(fmaf(score, row_factor, -softmax.max[row]));
          sum = n + i > 0 ? sum + score : score;
        }
      softmax.sum[row] = fmaf(softmax.sum[row], shrink[row] * raised.shrink[row], sum);
    }
    if (value_scales) scale_weights(value_scales);  // one branch; a choice for each weight costs caches without scales
  }
  __device__ void scale_weights(const float* value_scales) {
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = value_scales[key_of(n, i)] * Config::kWeightUnit;
#pragma unroll
        for (int row = 0; row < kRows; ++row) scores[row / 2][n][row % 2 * 2 + i] *= scale;
      }
  }
  // Into operands. kSplitScaled, for weights that carry a scale: what that takes off is left in `rest`.
  template <bool kSplitScaled = false>
  __device__ void round_weights(bool scaled = false) {
    using Format = Multiply<Config::kCompute>;
    // Lowered, so that no rest is negative: sums of both products keep an infinity of V.
    const float lowered = kSplitScaled && scaled ? 1.0f - 1.0f / 1024 : 1.0f;
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float (&score)[4] = scores[row / 2][n];
        const float first = score[row % 2 * 2], second = score[row % 2 * 2 + 1];
        const uint32_t rounded = Format::pack(first * lowered, second * lowered);
        weights[row / 2][n / 2][n % 2 * 2 + row % 2] = rounded;
        if constexpr (Config::kFineWeights) {
          const float2 kept = Format::unpack(rounded);
          rest[row / 2][n / 2][n % 2 * 2 + row % 2] = Format::pack(first - kept.x, second - kept.y);
        } else if (kSplitScaled && scaled) {
          const float2 kept = Format::unpack(rounded);  // infinite with its scale: nothing is left
          rest[row / 2][n / 2][n % 2 * 2 + row % 2] =
              Format::pack(isfinite(kept.x) ? first - kept.x : 0.0f, isfinite(kept.y) ? second - kept.y : 0.0f);
        }
      }
  }
  // Of a row's scores; queries that were divided by powers of two have scales of their own.
  __device__ float factor_of(int row, float factor, const float* query_scales) const {
    return Config::kScaledQueries && query_scales ? factor * query_scales[row_of(row)] : factor;
  }
  __device__ float raise(int row, float factor) {
    float top = scores[row / 2][0][row % 2 * 2];
#pragma unroll
    for (int i = 1; i < 2 * kN; ++i) top = fmaxf(top, scores[row / 2][i / 2][row % 2 * 2 + i % 2]);
    return softmax.raise(row, top, factor);
  }
  __device__ void shrink_sums(const float (&shrink)[kRows]) {
    bool moved = false;
#pragma unroll
    for (int row = 0; row < kRows; ++row) moved |= shrink[row] != 1.0f;
    if (__any_sync(0xffffffff, moved)) shrink_all(shrink);
  }
  __device__ void shrink_all(const float (&shrink)[kRows]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int v = 0; v < kV; ++v)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][v][i] *= shrink[2 * m + i / 2];
  }
};

}  // namespace chunkattn
