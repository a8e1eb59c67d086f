// What a prefill item leaves: results or partial states, from sums that have query rows in the lanes.
#pragma once
#include "epilogue.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

constexpr int64_t kTileRows = kTileVecs * kLanes;

// State of all rows of an item, tile by tile; rows of a tile in the lanes.
struct States {
  float* out;        // [tiles][head_dim_v][tile pitch]
  float *max, *sum;  // [tiles * kTileRows]

  void reset(int64_t padded_rows, int64_t head_dim_v) {
    memset(out, 0, padded_rows * head_dim_v * 4);
    for (int64_t i = 0; i < padded_rows; ++i) {
      max[i] = -kInfinity;
      sum[i] = 0.0f;
    }
  }
};

// x * 0 is NaN unless x is finite. head_dim_v is a multiple of 8, so four vectors at a time come out even.
CHUNKATTN_INLINE bool all_finite(const float* x, int64_t count) {
  Vf doubt[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  for (int64_t i = 0; i < count; i += 4 * kLanes)
    for (int64_t j = 0; j < 4; ++j) doubt[j] = madd(load(x + i + j * kLanes), splat(0.0f), doubt[j]);
  return sum(add(add(doubt[0], doubt[1]), add(doubt[2], doubt[3]))) == 0.0f;
}

template <class Compute>
struct Results {
  const AttentionParams& p;
  const Rows& rows;
  const States& state;
  float* four_rows;  // scratch [4][head_dim_v]

  // Results in the compute type: finished and rounded with rows still in the lanes, in place, then transposed by units
  // into their rows.
  void write_units(int64_t kv_head, int64_t row0, int64_t num_rows, int64_t pitch, float* out) const {
    alignas(64) float factors[kTileRows] = {};
    const float value_scale = constant_scale(p.v.scale, kv_head);
    for (int64_t r = 0; r < num_rows; ++r) {
      const RowIndex at = rows.index(row0 + r);
      const RowFactor factor = finish_state(p, at.head, value_scale, state.max[row0 + r], state.sum[row0 + r]);
      factors[r] = factor.scale;
      write_lse(p, at, factor.lse);
    }
    const int64_t units = p.head_dim_v / Compute::kPerUnit;
    for (int64_t v = 0; v < pitch; v += kLanes) {
      const Vf factor = load(factors + v);
      for (int64_t u = 0; u < units; ++u)
        store(out + u * pitch + v, Compute::result_unit(out + u * Compute::kPerUnit * pitch + v, pitch, factor));
    }
    for (int64_t r = 0; r < num_rows; r += 4) {
      char* targets[4];
      for (int64_t i = 0; i < 4; ++i)
        targets[i] = r + i < num_rows ? out_row(p, rows.index(row0 + r + i)) : reinterpret_cast<char*>(four_rows);
      for (int64_t u = 0; u < units; u += 4) {
        const void* from[4];
        void* to[4];
        for (int64_t i = 0; i < 4; ++i) {
          from[i] = out + (u + i) * pitch + r;
          to[i] = targets[i] + u * 4;
        }
        transpose4(from, to);
      }
    }
  }

  void leave_rows(const Request& request, const WorkItem& item, int64_t kv_head, int64_t row0, int64_t num_rows,
                  int64_t pitch, const float* out, float* partials) const {
    const int64_t columns = p.head_dim_v;
    for (int64_t r = 0; r < num_rows; r += 4) {
      for (int64_t c = 0; c < columns; c += 4) {
        const void* from[4];
        void* to[4];
        for (int64_t i = 0; i < 4; ++i) {
          from[i] = out + (c + i) * pitch + r;
          to[i] = four_rows + i * columns + c;
        }
        transpose4(from, to);
      }
      for (int64_t i = 0; i < min_of(4, num_rows - r); ++i) {
        const int64_t row = row0 + r + i;
        leave_row(p, request, item, kv_head, item.row_begin + row, rows.index(row), state.max[row], state.sum[row],
                  four_rows + i * columns, partials);
      }
    }
  }
};

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
