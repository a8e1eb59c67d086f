// Query rows of a tile into shared memory, in the order in which operand A is read.
#pragma once
#include "chunkattn/kv/element.cuh"
#include "chunkattn/kv/paged_rows.cuh"
#include "chunkattn/kv/widen.cuh"
#include "chunkattn/seq/task.cuh"
#include "kernels/attention/params.cuh"
#include "kernels/attention/query_unit.cuh"
#include "kernels/attention_sm80/config.h"

namespace chunkattn::sm80 {

// For 8-bit caches: queries as fp16 in even_odd_column() order, one warp a row. bf16 rows are divided by a power of two
// that goes to `scales`.
template <class Config, class Geometry>
__device__ inline void load_queries_for_bytes(const KernelParams& p, const Task& task, char* shared, int first_row,
                                              int end_row) {
  using E = Element<Config::kType>;
  using T = typename E::Type;
  using Tile = SharedTile<Config::kQueryBytes>;
  const int lane = threadIdx.x % 32, head_dim = static_cast<int>(p.attention.head_dim);
  float* scales = reinterpret_cast<float*>(shared + Geometry::kQueryScalesAt);
#pragma unroll 1
  for (int row = first_row; row < end_row; ++row) {
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = 0.0f;
    if (task.row_begin + row < task.row_end && lane * 8 < head_dim) {
      const PackedRow packed(task, p.group, task.row_begin + row);
      const T* source = static_cast<const T*>(p.attention.q) + packed.token(task) * p.attention.q_stride_token +
                        packed.q_head * p.attention.q_stride_head + lane * 8;
      if (p.query_access == Access::k16) {
        const Pack<T, 8> pack = load_pack<8>(source, 0);
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = E::widen(pack.item[i]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = E::widen(source[i]);
      }
    }
    PowerOfTwo unit(0.0f);
    if constexpr (Config::kType == DType::kBF16) {
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[i]));
#pragma unroll
      for (int other = 16; other > 0; other /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, other));
      unit = PowerOfTwo(largest);
    }
    if (lane == 0) scales[row] = unit.value;
    if (lane * 8 < Config::kHeadDim) {
      uint32_t even[2], odd[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        even[i] = bits_of(__floats2half2_rn(x[4 * i] * unit.inverse, x[4 * i + 2] * unit.inverse));
        odd[i] = bits_of(__floats2half2_rn(x[4 * i + 1] * unit.inverse, x[4 * i + 3] * unit.inverse));
      }
      // Lanes 2 i and 2 i + 1 share 16 elements: the even ones make one chunk, the odd ones the next.
      const int chunk = lane / 2 * 2, half = lane % 2 * 8;
      *reinterpret_cast<uint2*>(shared + Tile::offset(row, chunk) + half) = make_uint2(even[0], even[1]);
      *reinterpret_cast<uint2*>(shared + Tile::offset(row, chunk + 1) + half) = make_uint2(odd[0], odd[1]);
    }
  }
}

// Each warp copies a part of the tile's rows (in prefill the ones it computes on), as one group of cp.async. Rows past
// the task's end become zeros.
template <class Config, class Geometry>
__device__ inline void load_queries(const KernelParams& p, const Task& task, char* shared) {
  constexpr int kRows = Geometry::kRows / kWarps;
  const int thread = ptx::thread_index(), lane = thread % 32, first_row = thread / 32 * kRows;
  if constexpr (Config::kQuantised) {
    load_queries_for_bytes<Config, Geometry>(p, task, shared, first_row, first_row + kRows);
  } else {
    const int32_t row = task.row_begin + first_row + lane % kRows;
    const PackedRow packed(task, p.group, row);
    const int64_t offset = packed.token(task) * p.attention.q_stride_token + packed.q_head * p.attention.q_stride_head;
    copy_rows<kRows, SharedTile<Config::kQueryBytes>, 2>(
        ptx::shared_address(shared), first_row, static_cast<const char*>(p.attention.q),
        row < task.row_end ? offset * 2 : kNoRow, static_cast<int>(p.attention.head_dim) * 2, p.query_access, lane);
  }
  ptx::cp_async_commit();
}

}  // namespace chunkattn::sm80
