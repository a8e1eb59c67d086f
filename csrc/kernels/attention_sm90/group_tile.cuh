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
  using Rows::kV, Rows::lane, Rows::out, Rows::scores, Rows::weights;
  using QueryTile = typename Config::QueryTile;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = typename Config::ValueTile;

  __device__ explicit GroupTile(int lane) : Rows(lane) {}

  // scores = Q K^T. Both addresses: shared memory; `queries`: the group's first row.
  __device__ void multiply_keys(uint32_t queries, uint32_t keys) {
    pin(scores[0]);
    warpgroup_fence();
#pragma unroll
    for (int d = 0; d < Config::kHeadDim / 16; ++d) {
      const int column = d / 4, within = d % 4 * 32;
      warpgroup_multiply<Config::kCompute>(
          scores[0], matrix_descriptor<QueryTile>(queries + column * QueryTile::kColumnBytes + within),
          matrix_descriptor<KeyTile>(keys + column * KeyTile::kColumnBytes + within), d > 0);
    }
    warpgroup_commit();
    warpgroup_wait<0>();
    pin(scores[0]);
  }

  // out += weights V.
  __device__ void multiply_values(uint32_t values) {
    pin(out[0]);
    pin(weights[0]);
    warpgroup_fence();
#pragma unroll
    for (int k = 0; k < Config::kBlock / 16; ++k)
      warpgroup_multiply_add<Config::kCompute>(out[0], weights[0][k],
                                               matrix_descriptor<ValueTile>(values + k * 16 * 128));
    warpgroup_commit();
    warpgroup_wait<0>();
    pin(out[0]);
    pin(weights[0]);
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
};

}  // namespace chunkattn::sm90
