// Some query rows against some keys by one warp: mma.sync, with fragments from shared memory.
#pragma once
#include "chunkattn/kv/widen.cuh"
#include "chunkattn/mma/multiply.cuh"
#include "chunkattn/mma/shared_tile.cuh"
#include "kernels/attention/row_tile.cuh"

namespace chunkattn {

template <class Config, class Geometry>
struct WarpTile : RowTile<Config, Geometry::kWarpRows, Geometry::kWarpKeys> {
  using Rows = RowTile<Config, Geometry::kWarpRows, Geometry::kWarpKeys>;
  using Rows::kM, Rows::kN, Rows::kRows, Rows::kV, Rows::key_of, Rows::lane, Rows::out, Rows::row_of, Rows::scores,
      Rows::softmax, Rows::weights, Rows::rest;
  using Raised = typename Rows::Raised;
  static constexpr DType kCompute = Config::kCompute;

  __device__ explicit WarpTile(int lane) : Rows(lane) {}

  // scores = Q K^T.
  template <class Queries, class Keys>
  __device__ void multiply_keys(const Queries& queries, const Keys& keys) {
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
  template <class Tile>
  __device__ static TileReader<Tile> key_reader(uint32_t keys, int lane) {
    using Reader = TileReader<Tile>;
    return kKeyTiles == 4 ? Reader::rows_of_chunk(keys, lane) : Reader::chunks_then_rows(keys, lane);
  }

  // out += weights V. kWithRest: of weights that softmax_step() split because of a scale.
  template <bool kWithRest = false, class Values>
  __device__ void multiply_values(const Values& values) {
    float more[kM][kV][4] = {};  // of the rests of weights
    const auto multiply = [&](int m, int v, int k, uint32_t upper, uint32_t lower) {
      multiply_add<kCompute>(out[m][v], weights[m][k], upper, lower);
      if constexpr (kWithRest && !Config::kFineWeights) multiply_add<kCompute>(out[m][v], rest[m][k], upper, lower);
      if constexpr (Config::kFineWeights) multiply_add<kCompute>(more[m][v], rest[m][k], upper, lower);
    };
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
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
              multiply(m, v + 2 * j, k, upper.even, lower.even);
              multiply(m, v + 2 * j + 1, k, upper.odd, lower.odd);
            }
          }
        } else {
          values.load_transposed(x, k * 16, v);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            multiply(m, v, k, x[0], x[1]);
            multiply(m, v + 1, k, x[2], x[3]);
          }
        }
      }
    }
    if constexpr (Config::kFineWeights) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int v = 0; v < kV; ++v)
#pragma unroll
          for (int i = 0; i < 4; ++i)  // a rest of 0, or below it, makes NaN of an infinity
            if (isfinite(out[m][v][i])) out[m][v][i] += more[m][v][i];
    }
  }

  // Leaves the state in shared memory: sums of values at Config::staged(row, column), a maximum and a sum of weights a
  // row.
  __device__ void stage(float* values, float* max, float* sum, int first_row) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int at = first_row + row_of(row);
      const float total = softmax.total(row);
      if (lane % 4 == 0) max[at] = softmax.maximum(row), sum[at] = total;
      const int first = lane % 4 * (Config::kQuantised ? 4 : 2);
      const int i = row % 2 * 2;
      if constexpr (Config::kQuantised) {
#pragma unroll
        for (int v = 0; v < kV; v += 2) {  // columns lie in even_odd_column() order
          const float (&even)[4] = out[row / 2][v], (&odd)[4] = out[row / 2][v + 1];
          *reinterpret_cast<float4*>(values + Config::staged(at, first + v * 8)) =
              make_float4(even[i], odd[i], even[i + 1], odd[i + 1]);
        }
      } else {
#pragma unroll
        for (int v = 0; v < kV; ++v)
          *reinterpret_cast<float2*>(values + Config::staged(at, first + v * 8)) =
              make_float2(out[row / 2][v][i], out[row / 2][v][i + 1]);
      }
    }
  }
};

}  // namespace chunkattn
