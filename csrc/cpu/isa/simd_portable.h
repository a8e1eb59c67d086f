// Vectors of 4 floats by the compiler's vector extension: any machine that g++ or clang targets.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define CHUNKATTN_INLINE static inline __attribute__((always_inline))
#define CHUNKATTN_METHOD inline __attribute__((always_inline))

namespace chunkattn {
namespace CHUNKATTN_ISA {

typedef float Vf __attribute__((vector_size(16)));
typedef int32_t Vi __attribute__((vector_size(16)));
using Mask = Vi;

constexpr int kLanes = 4;
// 4 broadcast values x 2 vectors = 8 accumulators of 16 registers.
constexpr int kTileBroadcasts = 4;
constexpr int kTileVecs = 2;
// exp2 of this or less is exactly 0.
constexpr float kExp2Floor = -127.0f;
constexpr int kDecodeCols = 2;

CHUNKATTN_INLINE Vf load(const float* p) {
  Vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
CHUNKATTN_INLINE void store(float* p, Vf v) { memcpy(p, &v, sizeof v); }
CHUNKATTN_INLINE Vf splat(float x) { return Vf{x, x, x, x}; }
CHUNKATTN_INLINE Vf add(Vf a, Vf b) { return a + b; }
CHUNKATTN_INLINE Vf sub(Vf a, Vf b) { return a - b; }
CHUNKATTN_INLINE Vf mul(Vf a, Vf b) { return a * b; }
CHUNKATTN_INLINE Vf div(Vf a, Vf b) { return a / b; }
CHUNKATTN_INLINE Vf madd(Vf a, Vf b, Vf c) { return a * b + c; }
CHUNKATTN_INLINE Vf select(Mask m, Vf yes, Vf no) {
  return reinterpret_cast<Vf>((m & reinterpret_cast<Vi>(yes)) | (~m & reinterpret_cast<Vi>(no)));
}
CHUNKATTN_INLINE Mask less(Vf a, Vf b) { return a < b; }
// The second operand if either is NaN.
CHUNKATTN_INLINE Vf max(Vf a, Vf b) { return select(a > b, a, b); }
CHUNKATTN_INLINE Vf abs(Vf a) { return reinterpret_cast<Vf>(reinterpret_cast<Vi>(a) & INT32_MAX); }
// To the nearest integer for |a| < 2^22, where 1.5 * 2^23 + a has no fraction bits left.
CHUNKATTN_INLINE Vf round(Vf a) {
  const Vf magic = splat(12582912.0f);
  return (a + magic) - magic;
}
// a * 2^n for an integral n in [-127, 128]; -127 gives 0, 128 infinity.
CHUNKATTN_INLINE Vf scale_by_power(Vf a, Vf n) {
  const Vi exponent = (__builtin_convertvector(n, Vi) + 127) << 23;
  return a * reinterpret_cast<Vf>(exponent);
}
CHUNKATTN_INLINE Vf copy_sign(Vf magnitude, Vf sign) {
  return reinterpret_cast<Vf>((reinterpret_cast<Vi>(magnitude) & INT32_MAX) | (reinterpret_cast<Vi>(sign) & INT32_MIN));
}
CHUNKATTN_INLINE bool any(Mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
CHUNKATTN_INLINE Mask both(Mask a, Mask b) { return a & b; }

CHUNKATTN_INLINE Vi load_int(const int32_t* p) {
  Vi v;
  memcpy(&v, p, sizeof v);
  return v;
}
CHUNKATTN_INLINE Vi splat_int(int32_t x) { return Vi{x, x, x, x}; }
CHUNKATTN_INLINE Vi sub_int(Vi a, Vi b) { return a - b; }
// x, x + 1, x + 2, … by lane.
CHUNKATTN_INLINE Vi count_from(int32_t x) { return Vi{x, x + 1, x + 2, x + 3}; }
CHUNKATTN_INLINE Vf to_float(Vi a) { return __builtin_convertvector(a, Vf); }
// begin <= key < end in every lane.
CHUNKATTN_INLINE Mask in_range(Vi key, Vi begin, Vi end) { return (begin <= key) & (key < end); }
CHUNKATTN_INLINE Mask has_bit(Vi words, int bit) { return (words & splat_int(static_cast<int32_t>(1u << bit))) != 0; }

// Head dims are multiples of 8, so a vector of 4 units never ends early.
CHUNKATTN_INLINE Vf load_first(const void* p, int64_t) { return load(static_cast<const float*>(p)); }

// Lane i of the result is the sum over the lanes of a[i].
CHUNKATTN_INLINE float sum(Vf a) { return (a[0] + a[1]) + (a[2] + a[3]); }
CHUNKATTN_INLINE Vf sum_each(const Vf* a) { return Vf{sum(a[0]), sum(a[1]), sum(a[2]), sum(a[3])}; }
CHUNKATTN_INLINE float max_lane(Vf a) {
  const float low = a[0] > a[1] ? a[0] : a[1], high = a[2] > a[3] ? a[2] : a[3];
  return low > high ? low : high;
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
