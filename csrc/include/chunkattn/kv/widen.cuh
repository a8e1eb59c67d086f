// 8-bit elements to 16-bit floats in registers. Every value of the three formats is exact in fp16.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "chunkattn/core/params.h"

namespace chunkattn {

// Bytes 0 and 2, and bytes 1 and 3, of a word as two fp16 each.
struct WidePairs {
  uint32_t even, odd;
};

__device__ inline __half2 as_half2(uint32_t bits) { return reinterpret_cast<const __half2&>(bits); }
__device__ inline uint32_t bits_of(__half2 pair) { return reinterpret_cast<const uint32_t&>(pair); }

template <DType kFormat>
__device__ inline WidePairs widen(uint32_t word);

// fp16 with eight mantissa bits cut off.
template <>
__device__ inline WidePairs widen<DType::kE5M2>(uint32_t word) {
  return {(word << 8) & 0xff00ff00u, word & 0xff00ff00u};
}

// One exponent bit less than fp16: shifted into place the value is 2^-8 of what it should be. The one NaN code would
// become 480; times 144 it alone overflows, and infinity times zero is NaN.
__device__ inline uint32_t widen_e4m3(uint32_t high_bytes) {
  const uint32_t shifted = (high_bytes & 0x80008000u) | ((high_bytes & 0x7f007f00u) >> 1);
  const __half2 value = __hmul2(as_half2(shifted), __float2half2_rn(256.0f));
  const __half2 infinite_if_nan = __hmul2(value, __float2half2_rn(144.0f));
  return bits_of(__hfma2(infinite_if_nan, __float2half2_rn(0.0f), value));
}
template <>
__device__ inline WidePairs widen<DType::kE4M3>(uint32_t word) {
  return {widen_e4m3(word << 8), widen_e4m3(word)};
}

// 0x6400 + byte is 1024 + byte; the byte is the integer plus 128.
__device__ inline uint32_t widen_int8(uint32_t low_bytes) {
  const uint32_t shifted = (low_bytes & 0x00ff00ffu) ^ 0x64806480u;
  return bits_of(__hsub2(as_half2(shifted), __float2half2_rn(1152.0f)));
}
template <>
__device__ inline WidePairs widen<DType::kI8>(uint32_t word) {
  return {widen_int8(word), widen_int8(word >> 8)};
}

// Bytes 0 and 1, and bytes 2 and 3, of a word as two fp16 each: in their order (sm_90).
template <DType kFormat>
__device__ inline uint2 widen_in_order(uint32_t word);

#define CHUNKATTN_WIDEN_IN_ORDER(dtype, format)                         \
  template <>                                                           \
  __device__ inline uint2 widen_in_order<DType::dtype>(uint32_t word) { \
    uint2 pairs;                                                        \
    asm("{\n"                                                           \
        ".reg .b16 low, high;\n"                                        \
        "mov.b32 {low, high}, %2;\n"                                    \
        "cvt.rn.f16x2." format                                          \
        " %0, low;\n"                                                   \
        "cvt.rn.f16x2." format                                          \
        " %1, high;\n"                                                  \
        "}"                                                             \
        : "=r"(pairs.x), "=r"(pairs.y)                                  \
        : "r"(word));                                                   \
    return pairs;                                                       \
  }
CHUNKATTN_WIDEN_IN_ORDER(kE4M3, "e4m3x2")
CHUNKATTN_WIDEN_IN_ORDER(kE5M2, "e5m2x2")
#undef CHUNKATTN_WIDEN_IN_ORDER

template <>
__device__ inline uint2 widen_in_order<DType::kI8>(uint32_t word) {
  return make_uint2(widen_int8(__byte_perm(word, 0, 0x4140)), widen_int8(__byte_perm(word, 0, 0x4342)));
}

// Where V has a scale a token, weights carry it into the product. A scale is about a row's largest magnitude divided by
// the largest value of the format; multiplied by this it lies in the middle of what fp16 holds. For e5m2 less than its
// largest value, since caches that need no scale may have scales about 1.
CHUNKATTN_HOST_DEVICE constexpr float weight_unit(DType cache) {
  return cache == DType::kE5M2 ? 4096.0f : cache == DType::kE4M3 ? 512.0f : cache == DType::kI8 ? 128.0f : 1.0f;
}

// Order of the head dim in fragments of 8-bit tiles: of 16 neighbours first the even ones, then the odd ones. Queries
// are stored in this order, so that K's even and odd bytes are the two halves of operand B as they lie; columns of
// P V come out in it.
__device__ constexpr int even_odd_column(int position) { return position % 8 * 2 + position / 8; }

}  // namespace chunkattn
