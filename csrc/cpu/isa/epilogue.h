// From accumulated states to results: sinks, division by the sum, log-sum-exp; partial states and their merge.
#pragma once
#include "rows.h"
#include "softmax.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// A partial state is head_dim_v unnormalised sums of values, the maximum in log2 units, the sum of weights.
CHUNKATTN_INLINE int64_t partial_width(const AttentionParams& p) { return p.head_dim_v + 2; }

CHUNKATTN_INLINE float* partial_row(const AttentionParams& p, const Request& request, const WorkItem& item,
                                    int64_t split, int64_t kv_head, int64_t row, float* partials) {
  const int64_t rows = request.q_len * request.group;
  const int64_t index = item.partial_base + (split * p.num_kv_heads + kv_head) * rows + row;
  return partials + index * partial_width(p);
}

struct RowFactor {
  float scale, lse;  // what the sums of values are multiplied by; natural log
};

// max in log2 units. The sink is one more logit without a value.
CHUNKATTN_INLINE RowFactor finish_state(const AttentionParams& p, int64_t q_head, float value_scale, float max,
                                        float sum) {
  const float sink = p.sinks ? p.sinks[q_head * p.sinks_stride] : -kInfinity;
  if (max == -kInfinity && sum == 0.0f) return {0.0f, sink};
  if (!p.sinks) return {value_scale / sum, max * kLn2 + __builtin_logf(sum)};
  const float sink_log2 = sink * kLog2e;
  const float top = sink_log2 > max ? sink_log2 : max;
  const float shrink = __builtin_exp2f(max - top);
  const float total = sum * shrink + __builtin_exp2f(sink_log2 - top);
  return {value_scale * shrink / total, top * kLn2 + __builtin_logf(total)};
}

CHUNKATTN_INLINE char* out_row(const AttentionParams& p, RowIndex at) {
  return static_cast<char*>(p.out) + (at.token * p.out_stride_token + at.head * p.out_stride_head) * bytes_of(p.dtype);
}

CHUNKATTN_INLINE void write_lse(const AttentionParams& p, RowIndex at, float lse) {
  if (p.lse) p.lse[at.token * p.lse_stride_token + at.head * p.lse_stride_head] = lse;
}

// Writes one finished row; `values` are unnormalised sums.
CHUNKATTN_INLINE void write_row(const AttentionParams& p, int64_t kv_head, RowIndex at, float max, float sum,
                                const float* values) {
  const RowFactor factor = finish_state(p, at.head, constant_scale(p.v.scale, kv_head), max, sum);
  store_row(values, factor.scale, out_row(p, at), p.dtype, p.head_dim_v);
  write_lse(p, at, factor.lse);
}

// Leaves a row's state as result or, in an item that is one of several splits, as partial state.
CHUNKATTN_INLINE void leave_row(const AttentionParams& p, const Request& request, const WorkItem& item, int64_t kv_head,
                                int64_t row, RowIndex at, float max, float sum, const float* values, float* partials) {
  if (item.num_splits == 1) return write_row(p, kv_head, at, max, sum, values);
  float* target = partial_row(p, request, item, item.split, kv_head, row, partials);
  memcpy(target, values, p.head_dim_v * 4);
  target[p.head_dim_v] = max;
  target[p.head_dim_v + 1] = sum;
}

// Joins the partial states of all splits of an item's rows, in split order, and writes the results.
// values: scratch, [head_dim_v rounded up to kLanes].
static void merge_splits(const AttentionParams& p, const WorkItem& item, float* partials, float* values) {
  const Request request(p, item.request);
  const int64_t whole = p.head_dim_v / kLanes * kLanes;
  for (int64_t head = item.kv_head_begin; head < item.kv_head_end; ++head)
    for (int64_t row = item.row_begin; row < item.row_end; ++row) {
      Vf max = splat(-kInfinity), sum = splat(0.0f);
      for (int64_t c = 0; c < whole + kLanes; c += kLanes) store(values + c, splat(0.0f));
      for (int64_t split = 0; split < item.num_splits; ++split) {
        const float* part = partial_row(p, request, item, split, head, row, partials);
        const JoinFactors f = join_factors(max, splat(part[p.head_dim_v]));
        for (int64_t c = 0; c < whole; c += kLanes)
          store(values + c, join(load(values + c), f.left, load(part + c), f.right));
        if (whole < p.head_dim_v) {
          float rest[kLanes] = {};
          memcpy(rest, part + whole, (p.head_dim_v - whole) * 4);
          store(values + whole, join(load(values + whole), f.left, load(rest), f.right));
        }
        sum = join(sum, f.left, splat(part[p.head_dim_v + 1]), f.right);
        max = f.max;
      }
      write_row(p, head, RowIndex(request, head, row), max_lane(max), max_lane(sum), values);
    }
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
