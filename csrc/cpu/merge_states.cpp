#include "merge_states.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rows.h"

namespace chunkattn {
namespace {

constexpr int64_t kRowsPerThread = 256;  // less work than this is not worth waking a thread

const void* row_of(const StateView& state, int64_t token, int64_t head, int64_t size) {
  return static_cast<const char*>(state.out) + (token * state.out_stride_token + head * state.out_stride_head) * size;
}

float lse_of(const StateView& state, int64_t token, int64_t head) {
  return state.lse[token * state.lse_stride_token + head * state.lse_stride_head];
}

void merge_row(const MergeParams& p, int64_t token, int64_t head) {
  const double lse_a = lse_of(p.a, token, head), lse_b = lse_of(p.b, token, head);
  const double infinity = std::numeric_limits<double>::infinity();
  const double top = std::max(lse_a, lse_b), finite = top == -infinity ? 0.0 : top;
  const double weight_a = std::exp(lse_a - finite), weight_b = std::exp(lse_b - finite);
  const double total = weight_a + weight_b;
  float a[kMaxHeadDim], b[kMaxHeadDim];
  const int64_t size = size_of(p.dtype), dim = p.head_dim_v;
  load_row(p.dtype, row_of(p.a, token, head, size), a, dim);
  load_row(p.dtype, row_of(p.b, token, head, size), b, dim);
  // A state of weight 0 is neutral even where its out is NaN.
  const float share_a = total == 0.0 ? 0.0f : static_cast<float>(weight_a / total);
  const float share_b = total == 0.0 ? 0.0f : static_cast<float>(weight_b / total);
  for (int64_t i = 0; i < dim; ++i)
    a[i] = (weight_a == 0.0 ? 0.0f : a[i] * share_a) + (weight_b == 0.0 ? 0.0f : b[i] * share_b);
  store_row(p.dtype, a, const_cast<void*>(row_of(p.result, token, head, size)), dim);
  // An overflowed state (+inf) stays visible: lse +inf, out NaN.
  p.result.lse[token * p.result.lse_stride_token + head * p.result.lse_stride_head] =
      static_cast<float>(top == infinity ? infinity : finite + std::log(total));
}

}  // namespace

void merge_states(const MergeParams& p, int num_threads) {
  const int64_t useful = p.num_tokens * p.num_heads / kRowsPerThread + 1;
  const int threads = static_cast<int>(std::min<int64_t>(useful, num_threads));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t t = 0; t < p.num_tokens; ++t)
    for (int64_t h = 0; h < p.num_heads; ++h) merge_row(p, t, h);
}

}  // namespace chunkattn
