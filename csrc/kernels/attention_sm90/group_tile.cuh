// 64 query rows against a block of keys by the four warps of a consumer group: wgmma, with K and V in shared memory.
#pragma once
#include "chunkattn/mma/multiply.cuh"
#include "chunkattn/mma/warpgroup_multiply.cuh"
#include "kernels/attention/row_tile.cuh"
#include "kernels/attention_sm90/config.h"

namespace chunkattn::sm90 {

// What one warp of the group holds: 16 rows.
template <class Config>
struct GroupTile : RowTile<Config, 16, Config::kBlock> {
  using Rows = RowTile<Config, 16, Config::kBlock>;
  using Rows::kV, Rows::lane, Rows::out, Rows::scores, Rows::shrink_all, Rows::softmax, Rows::weights;
  using Raised = typename Rows::Raised;
  using QueryTile = typename Config::QueryTile;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = typename Config::ValueTile;

  __device__ explicit GroupTile(int lane) : Rows(lane) {}

  // scores = Q K^T. Tiles are lower words of descriptors; `queries`: from the group's first row on.
  __device__ void multiply_keys(uint32_t queries, uint32_t keys) {
    pin(scores[0]);
    warpgroup_fence();
    issue_keys(queries, keys);
    warpgroup_wait<0>();
    pin(scores[0]);
  }

  // out += weights V.
  __device__ void multiply_values(uint32_t values) {
    pin(out[0]);
    pin(weights[0]);
    warpgroup_fence();
    issue_values(values);
    finish_values();
  }

  // Begins both, of V for the last block. finish_keys() waits for the scores, finish_values() for the rest; until then
  // nobody may touch out and weights.
  __device__ void begin_both(uint32_t queries, uint32_t keys, uint32_t values) {
    pin(scores[0]);
    pin(out[0]);
    pin(weights[0]);
    warpgroup_fence();
    issue_keys(queries, keys);
    issue_values(values);
  }
  __device__ void finish_keys() {
    warpgroup_wait<1>();
    pin(scores[0]);
  }
  __device__ void finish_values() {
    warpgroup_wait<0>();
    pin(out[0]);
    pin(weights[0]);
  }

  // softmax_step() in two parts. weigh() leaves out and weights alone: scores become the weights, not rounded yet.
  // Returns by how much sums of older keys shrink, and whether any does.
  struct Shrink {
    float of_row[2];
    bool any;
  };
  __device__ Shrink weigh(float factor, const float* query_scales, const float* value_scales,
                          const Raised& raised = Raised()) {
    Shrink shrink;
    Rows::weigh(factor, query_scales, value_scales, shrink.of_row, raised);
    // Asking for the sums as well keeps ptxas from putting off weights until they are rounded.
    const bool moved = shrink.of_row[0] != 1.0f || shrink.of_row[1] != 1.0f;
    shrink.any = __any_sync(0xffffffff, moved || !(softmax.sum[0] >= -softmax.sum[1]));
    pin(scores[0]);
    return shrink;
  }
  __device__ void take_weights(const Shrink& shrink) {
    Rows::round_weights();
    if (shrink.any) shrink_all(shrink.of_row);
    pin(out[0]);  // or ptxas may hold some of them elsewhere between two products, and move them to and fro
  }

  // Calls visit(column, values) for four neighbouring columns of a row of this lane at a time. Neighbouring lanes swap
  // halves, so that each has all four. All lanes.
  template <class Visit>
  __device__ void for_each_part(int row, Visit visit) {
    const bool odd = lane % 2;
#pragma unroll
    for (int v = 0; v < kV; v += 2) {
      const float (&left)[4] = out[0][v], (&right)[4] = out[0][v + 1];
      const int i = row * 2;
      const float x = __shfl_xor_sync(0xffffffff, odd ? left[i] : right[i], 1);
      const float y = __shfl_xor_sync(0xffffffff, odd ? left[i + 1] : right[i + 1], 1);
      visit((v + odd) * 8 + lane % 4 / 2 * 4,
            odd ? make_float4(x, y, right[i], right[i + 1]) : make_float4(left[i], left[i + 1], x, y));
    }
  }

 private:
  // Each a group of multiplications of its own.
  __device__ void issue_keys(uint32_t queries, uint32_t keys) {
    const uint64_t q = matrix_descriptor(queries), k = matrix_descriptor(keys);
#pragma unroll
    for (int d = 0; d < Config::kHeadDim / 16; ++d) {
      const int column = d / 4, within = d % 4 * 32;
      warpgroup_multiply<Config::kCompute>(scores[0], q + (column * QueryTile::kColumnBytes + within) / 16,
                                           k + (column * KeyTile::kColumnBytes + within) / 16, d > 0);
    }
    warpgroup_commit();
  }
  __device__ void issue_values(uint32_t values) {
    const uint64_t v = matrix_descriptor(values);
#pragma unroll
    for (int k = 0; k < Config::kBlock / 16; ++k)
      warpgroup_multiply_add<Config::kCompute>(out[0], weights[0][k], v + k * 16 * 128 / 16);
    warpgroup_commit();
  }
};

}  // namespace chunkattn::sm90
