// Queries against 8-bit caches: what they are divided by, so that fp16 holds them.
#pragma once
#include <cstdint>

namespace chunkattn {

// Largest magnitude of a row as a power of two, and its inverse: queries divided by it fit fp16 whatever they were.
struct PowerOfTwo {
  float value = 1.0f, inverse = 1.0f;

  __device__ explicit PowerOfTwo(float largest) {
    const uint32_t exponent = __float_as_uint(largest) >> 23 & 0xff;
    if (exponent == 0 || exponent >= 253) return;  // zeros, infinities, NaN: as they are
    value = __uint_as_float(exponent << 23);
    inverse = __uint_as_float((254 - exponent) << 23);
  }
};

}  // namespace chunkattn
