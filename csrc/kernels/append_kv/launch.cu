#include <algorithm>

#include "kernels/alignment.h"
#include "kernels/append_kv/kernel.cuh"
#include "kernels/library.h"

namespace chunkattn::append {
namespace {

bool rows_are_aligned(const void* data, int64_t stride_token, int64_t stride_head, int64_t size, int64_t unit) {
  return is_aligned(data, unit) && is_multiple(stride_token * size, unit) && is_multiple(stride_head * size, unit);
}

bool pool_is_aligned(const PagedPool& pool, int64_t size, int64_t unit) {
  return rows_are_aligned(pool.data, pool.stride_slot, pool.stride_head, size, unit) &&
         is_multiple(pool.stride_page * size, unit);
}

// Whether every row splits into packs of `count` elements at aligned addresses, with RoPE's partners whole packs apart.
template <DType dtype, DType stored>
bool takes_packs(const AppendParams& p, int64_t count) {
  const int64_t size = size_of(dtype), unit = count * size, stored_unit = count * size_of(stored);
  if (p.head_dim % count || p.head_dim_v % count) return false;
  if (p.rope.cos && (p.rope.interleaved ? p.rope.rotary_dim : p.rope.rotary_dim / 2) % count) return false;
  return rows_are_aligned(p.k, p.k_stride_token, p.k_stride_head, size, unit) &&
         rows_are_aligned(p.v, p.v_stride_token, p.v_stride_head, size, unit) &&
         (!p.q || rows_are_aligned(p.q, p.q_stride_token, p.q_stride_head, size, unit)) &&
         pool_is_aligned(p.k_pool, size_of(stored), stored_unit) &&
         pool_is_aligned(p.v_pool, size_of(stored), stored_unit);
}

template <DType dtype, DType stored, int kCount>
int32_t launch_packs(const AppendParams& p, cudaStream_t stream) {
  const int64_t packs = std::max(p.head_dim, p.head_dim_v) / kCount;
  int lanes = 1;
  while (lanes < packs && lanes < 32) lanes *= 2;
  const int64_t rows = 2 * p.num_kv_heads + (p.q ? p.num_q_heads : 0);
  const int64_t wanted = std::min<int64_t>((rows * lanes + 31) / 32 * 32, kMaxThreads);
  const size_t shared = p.rope.cos ? p.rope.rotary_dim * sizeof(float) : 0;
  append_kernel<dtype, stored, kCount>
      <<<static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(wanted), shared, stream>>>(p, lanes);
  return cudaGetLastError();
}

template <DType dtype, DType stored>
int32_t launch(const AppendParams& p, cudaStream_t stream) {
  constexpr int kWide = kVectorBytes / size_of(dtype);
  return takes_packs<dtype, stored>(p, kWide) ? launch_packs<dtype, stored, kWide>(p, stream)
                                              : launch_packs<dtype, stored, 1>(p, stream);
}

template <DType dtype>
int32_t launch_stored(const AppendParams& p, cudaStream_t stream) {
  switch (p.k_pool.dtype) {
    case dtype: return launch<dtype, dtype>(p, stream);
    case DType::kE4M3: return launch<dtype, DType::kE4M3>(p, stream);
    case DType::kE5M2: return launch<dtype, DType::kE5M2>(p, stream);
    case DType::kI8: return launch<dtype, DType::kI8>(p, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace
}  // namespace chunkattn::append

CHUNKATTN_EXPORT int32_t chunkattn_append_kv(const chunkattn::AppendParams* p,
                                             const chunkattn::LaunchContext* context) {
  using namespace chunkattn;
  const auto stream = static_cast<cudaStream_t>(context->stream);
  if (p->num_tokens == 0 || p->num_kv_heads == 0) return cudaSuccess;
  if (p->num_tokens > INT32_MAX) return cudaErrorInvalidConfiguration;
  switch (p->dtype) {
    case DType::kF32: return append::launch_stored<DType::kF32>(*p, stream);
    case DType::kF16: return append::launch_stored<DType::kF16>(*p, stream);
    case DType::kBF16: return append::launch_stored<DType::kBF16>(*p, stream);
    default: return cudaErrorInvalidValue;
  }
}
