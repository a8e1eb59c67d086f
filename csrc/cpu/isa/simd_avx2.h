// Vectors of 8 floats: AVX2 with FMA and F16C, the x86-64-v3 level.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define CHUNKATTN_INLINE static inline __attribute__((always_inline))
#define CHUNKATTN_METHOD inline __attribute__((always_inline))

namespace chunkattn {
namespace CHUNKATTN_ISA {

using Vf = __m256;
using Vi = __m256i;
using Mask = __m256;

constexpr int kLanes = 8;
// 4 broadcast values x 3 vectors = 12 accumulators of 16 registers.
constexpr int kTileBroadcasts = 4;
constexpr int kTileVecs = 3;
// exp2 of this or less is exactly 0.
constexpr float kExp2Floor = -127.0f;
constexpr int kDecodeCols = 2;

CHUNKATTN_INLINE Vf load(const float* p) { return _mm256_loadu_ps(p); }
CHUNKATTN_INLINE void store(float* p, Vf v) { _mm256_storeu_ps(p, v); }
CHUNKATTN_INLINE Vf splat(float x) { return _mm256_set1_ps(x); }
CHUNKATTN_INLINE Vf add(Vf a, Vf b) { return _mm256_add_ps(a, b); }
CHUNKATTN_INLINE Vf sub(Vf a, Vf b) { return _mm256_sub_ps(a, b); }
CHUNKATTN_INLINE Vf mul(Vf a, Vf b) { return _mm256_mul_ps(a, b); }
CHUNKATTN_INLINE Vf div(Vf a, Vf b) { return _mm256_div_ps(a, b); }
CHUNKATTN_INLINE Vf madd(Vf a, Vf b, Vf c) { return _mm256_fmadd_ps(a, b, c); }
// The second operand if either is NaN.
CHUNKATTN_INLINE Vf max(Vf a, Vf b) { return _mm256_max_ps(a, b); }
CHUNKATTN_INLINE Vf abs(Vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
CHUNKATTN_INLINE Vf round(Vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// a * 2^n for an integral n in [-127, 128]; -127 gives 0, 128 infinity.
CHUNKATTN_INLINE Vf scale_by_power(Vf a, Vf n) {
  const Vi exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
}
CHUNKATTN_INLINE Vf copy_sign(Vf magnitude, Vf sign) {
  const Vf top = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(top, magnitude), _mm256_and_ps(top, sign));
}

CHUNKATTN_INLINE Mask less(Vf a, Vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
CHUNKATTN_INLINE Vf select(Mask m, Vf yes, Vf no) { return _mm256_blendv_ps(no, yes, m); }
CHUNKATTN_INLINE bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
CHUNKATTN_INLINE Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }

CHUNKATTN_INLINE Vi load_int(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
CHUNKATTN_INLINE Vi splat_int(int32_t x) { return _mm256_set1_epi32(x); }
CHUNKATTN_INLINE Vi sub_int(Vi a, Vi b) { return _mm256_sub_epi32(a, b); }
// x, x + 1, x + 2, … by lane.
CHUNKATTN_INLINE Vi count_from(int32_t x) {
  return _mm256_add_epi32(_mm256_set1_epi32(x), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}
CHUNKATTN_INLINE Vf to_float(Vi a) { return _mm256_cvtepi32_ps(a); }
// begin <= key < end in every lane.
CHUNKATTN_INLINE Mask in_range(Vi key, Vi begin, Vi end) {
  return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(begin, key), _mm256_cmpgt_epi32(end, key)));
}
CHUNKATTN_INLINE Mask has_bit(Vi words, int bit) {
  const Vi wanted = _mm256_set1_epi32(static_cast<int32_t>(1u << bit));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(words, wanted), wanted));
}

// Head dims are multiples of 8, so a vector of 8 units never ends early.
CHUNKATTN_INLINE Vf load_first(const void* p, int64_t) { return _mm256_loadu_ps(static_cast<const float*>(p)); }

// Lane i of the result is the sum over the lanes of a[i].
CHUNKATTN_INLINE Vf sum_each(const Vf* a) {
  const Vf low = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  const Vf high = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}
CHUNKATTN_INLINE float sum(Vf a) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}
CHUNKATTN_INLINE float max_lane(Vf a) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
