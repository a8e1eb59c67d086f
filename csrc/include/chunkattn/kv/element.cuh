// Elements of every dtype on the device: widened to fp32 and rounded back to nearest even, the same bits as the CPU's.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "chunkattn/core/params.h"

namespace chunkattn {

template <DType dtype>
struct Element;

template <>
struct Element<DType::kF32> {
  using Type = float;
  static __device__ float widen(Type x) { return x; }
  static __device__ Type narrow(float x) { return x; }
};

template <>
struct Element<DType::kF16> {
  using Type = __half;
  static __device__ float widen(Type x) { return __half2float(x); }
  static __device__ Type narrow(float x) { return __float2half_rn(x); }
};

template <>
struct Element<DType::kBF16> {
  using Type = __nv_bfloat16;
  static __device__ float widen(Type x) { return __bfloat162float(x); }
  static __device__ Type narrow(float x) { return __float2bfloat16_rn(x); }
};

// A small float with kMantissa mantissa bits and exponent bias kBias; saturates, and NaN stays NaN.
template <int kMantissa, int kBias>
__device__ inline uint8_t encode_fp8(float x, float largest) {
  const uint32_t sign = (__float_as_uint(x) >> 24) & 0x80, magnitude_bits = __float_as_uint(x) & 0x7fffffff;
  const float magnitude = fminf(__uint_as_float(magnitude_bits), largest);
  const uint32_t bits = __float_as_uint(magnitude);
  constexpr int kShift = 23 - kMantissa;
  const uint32_t normal = ((bits + ((1u << (kShift - 1)) - 1) + ((bits >> kShift) & 1)) >> kShift) -
                          (static_cast<uint32_t>(127 - kBias) << kMantissa);
  // Below the least normal value the sum with this power of two leaves the rounded denormal in the low bits.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + kShift + 1 - kBias) << 23;
  const uint32_t denormal = __float_as_uint(__fadd_rn(magnitude, __uint_as_float(kMagic))) - kMagic;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(127 - kBias + 1) << 23;
  const uint32_t code = bits < kLeastNormal ? denormal : normal;
  return static_cast<uint8_t>(sign | (magnitude_bits > 0x7f800000 ? 0x7f : code));
}

template <>
struct Element<DType::kE4M3> {
  using Type = uint8_t;
  static constexpr float kLargest = 448.0f;
  static __device__ Type narrow(float x) {
#if __CUDA_ARCH__ >= 890  // the instruction exists since sm_89
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return static_cast<uint8_t>(pair);
#else
    return encode_fp8<3, 7>(x, kLargest);
#endif
  }
};

template <>
struct Element<DType::kE5M2> {
  using Type = uint8_t;
  static constexpr float kLargest = 57344.0f;
  static __device__ Type narrow(float x) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return static_cast<uint8_t>(pair);
#else
    return encode_fp8<2, 15>(x, kLargest);
#endif
  }
};

template <>
struct Element<DType::kI8> {
  using Type = int8_t;
  static constexpr float kLargest = 127.0f;
  static __device__ Type narrow(float x) {  // NaN becomes 0
    return static_cast<int8_t>(__float2int_rn(fminf(fmaxf(x == x ? x : 0.0f, -kLargest), kLargest)));
  }
};

// kCount elements that one instruction loads or stores.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  static_assert(sizeof(T) * kCount <= 16, "a lane moves at most 16 bytes at once");
  T item[kCount];
};

// `row[index * kCount …]`, which must be aligned to the pack's size.
template <int kCount, typename T>
__device__ inline Pack<T, kCount> load_pack(const T* row, int64_t index) {
  return reinterpret_cast<const Pack<T, kCount>*>(row)[index];
}
template <typename T, int kCount>
__device__ inline void store_pack(T* row, int64_t index, const Pack<T, kCount>& pack) {
  reinterpret_cast<Pack<T, kCount>*>(row)[index] = pack;
}

}  // namespace chunkattn
