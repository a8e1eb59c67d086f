// D += A B by the four warps of a warpgroup, 64 rows, 16 deep, asynchronously (sm_90a); B in shared memory.
#pragma once
#include <cstdint>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "chunkattn/core/params.h"

namespace chunkattn {

// Instructions by format of the operands. FromShared takes A from shared memory, both with k innermost; FromRegisters
// takes A from registers and B with columns innermost.
template <DType kCompute, int kColumns>
struct WarpgroupMultiply;

#define CHUNKATTN_WARPGROUP_MULTIPLY(dtype, format, columns)                                                     \
  template <>                                                                                                    \
  struct WarpgroupMultiply<DType::dtype, columns> {                                                              \
    using Major = cute::SM90::GMMA::Major;                                                                       \
    using FromShared = cute::SM90::GMMA::MMA_64x##columns##x16_F32##format##format##_SS<Major::K, Major::K>;     \
    using FromRegisters = cute::SM90::GMMA::MMA_64x##columns##x16_F32##format##format##_RS<Major::K, Major::MN>; \
  }
CHUNKATTN_WARPGROUP_MULTIPLY(kBF16, BF16, 64);
CHUNKATTN_WARPGROUP_MULTIPLY(kBF16, BF16, 128);
CHUNKATTN_WARPGROUP_MULTIPLY(kBF16, BF16, 256);
CHUNKATTN_WARPGROUP_MULTIPLY(kF16, F16, 64);
CHUNKATTN_WARPGROUP_MULTIPLY(kF16, F16, 128);
CHUNKATTN_WARPGROUP_MULTIPLY(kF16, F16, 256);
#undef CHUNKATTN_WARPGROUP_MULTIPLY

// What an instruction is told of a ColumnTile of which it takes what begins at `address`: a multiple of 8 rows from its
// start, and of 32 bytes within a column. The lower word counts in 16 bytes; the upper one is the same for all tiles.
template <class Tile>
__device__ inline uint32_t lower_descriptor(uint32_t address) {
  constexpr uint32_t kNextColumn = Tile::kColumnBytes >> 4;
  return (kNextColumn << 16) + (address >> 4);
}
__device__ inline uint64_t matrix_descriptor(uint32_t lower) {
  constexpr uint32_t kSwizzle128 = 1u << 30, kEightRows = 8 * 128 >> 4;
  return uint64_t{kSwizzle128 | kEightRows} << 32 | lower;
}

namespace detail {
template <class Atom, size_t... i>
__device__ inline void issue(uint64_t a, uint64_t b, float (&sum)[sizeof...(i) / 4][4], bool adds,
                             std::index_sequence<i...>) {
  using Scale = cute::SM90::GMMA::ScaleOut;
  Atom::fma(a, b, sum[i / 4][i % 4]..., adds ? Scale::One : Scale::Zero);
}
template <class Atom, size_t... i>
__device__ inline void issue(const uint32_t (&a)[4], uint64_t b, float (&sum)[sizeof...(i) / 4][4],
                             std::index_sequence<i...>) {
  Atom::fma(a[0], a[1], a[2], a[3], b, sum[i / 4][i % 4]..., cute::SM90::GMMA::ScaleOut::One);
}
}  // namespace detail

// Lane l of warp w holds of the sums rows 16 w + l / 4 and 8 further, of every tile of 8 columns what mma.sync leaves
// there. sum = A B, or sum += A B.
template <DType kCompute, int kTiles>
__device__ inline void warpgroup_multiply(float (&sum)[kTiles][4], uint64_t a, uint64_t b, bool adds) {
  using Atom = typename WarpgroupMultiply<kCompute, kTiles * 8>::FromShared;
  detail::issue<Atom>(a, b, sum, adds, std::make_index_sequence<kTiles * 4>());
}
// sum += A B; a: as for mma.sync.
template <DType kCompute, int kTiles>
__device__ inline void warpgroup_multiply_add(float (&sum)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
  using Atom = typename WarpgroupMultiply<kCompute, kTiles * 8>::FromRegisters;
  detail::issue<Atom>(a, b, sum, std::make_index_sequence<kTiles * 4>());
}

// Before the first multiplication that reads or adds to registers which were accessed since the last one.
__device__ inline void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of multiplications.
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending groups are under way.
template <int kPending>
__device__ inline void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to registers of a multiplication across this place.
template <int kTiles>
__device__ inline void pin(float (&sum)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sum[n][i])::"memory");
}
template <int kCount>
__device__ inline void pin(uint32_t (&words)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(words[n][i])::"memory");
}

}  // namespace chunkattn
