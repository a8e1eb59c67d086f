// Vectors of 16 floats: AVX-512 F/BW/DQ/VL, the x86-64-v4 level.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define CHUNKATTN_INLINE static inline __attribute__((always_inline))
#define CHUNKATTN_METHOD inline __attribute__((always_inline))

namespace chunkattn {
namespace CHUNKATTN_ISA {

using Vf = __m512;
using Vi = __m512i;
using Mask = __mmask16;

constexpr int kLanes = 16;
// Register tile of the matrix products: 8 broadcast values x 3 vectors = 24 accumulators of 32 registers.
constexpr int kTileBroadcasts = 8;
constexpr int kTileVecs = 3;
// exp2 of this or less is exactly 0.
constexpr float kExp2Floor = -200.0f;
// Vectors of output columns that a decode step keeps in registers beside 4 query rows.
constexpr int kDecodeCols = 4;

CHUNKATTN_INLINE Vf load(const float* p) { return _mm512_loadu_ps(p); }
CHUNKATTN_INLINE void store(float* p, Vf v) { _mm512_storeu_ps(p, v); }
CHUNKATTN_INLINE Vf splat(float x) { return _mm512_set1_ps(x); }
CHUNKATTN_INLINE Vf add(Vf a, Vf b) { return _mm512_add_ps(a, b); }
CHUNKATTN_INLINE Vf sub(Vf a, Vf b) { return _mm512_sub_ps(a, b); }
CHUNKATTN_INLINE Vf mul(Vf a, Vf b) { return _mm512_mul_ps(a, b); }
CHUNKATTN_INLINE Vf div(Vf a, Vf b) { return _mm512_div_ps(a, b); }
CHUNKATTN_INLINE Vf madd(Vf a, Vf b, Vf c) { return _mm512_fmadd_ps(a, b, c); }
// The second operand if either is NaN.
CHUNKATTN_INLINE Vf max(Vf a, Vf b) { return _mm512_max_ps(a, b); }
CHUNKATTN_INLINE Vf abs(Vf a) { return _mm512_abs_ps(a); }
CHUNKATTN_INLINE Vf round(Vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// a * 2^n for an integral n; underflows to 0.
CHUNKATTN_INLINE Vf scale_by_power(Vf a, Vf n) { return _mm512_scalef_ps(a, n); }
CHUNKATTN_INLINE Vf copy_sign(Vf magnitude, Vf sign) {
  const Vi top = _mm512_set1_epi32(INT32_MIN);
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(top, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xca));
}

CHUNKATTN_INLINE Mask less(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
CHUNKATTN_INLINE Vf select(Mask m, Vf yes, Vf no) { return _mm512_mask_blend_ps(m, no, yes); }
CHUNKATTN_INLINE bool any(Mask m) { return m != 0; }
CHUNKATTN_INLINE Mask both(Mask a, Mask b) { return a & b; }

CHUNKATTN_INLINE Vi load_int(const int32_t* p) { return _mm512_loadu_si512(p); }
CHUNKATTN_INLINE Vi splat_int(int32_t x) { return _mm512_set1_epi32(x); }
CHUNKATTN_INLINE Vi sub_int(Vi a, Vi b) { return _mm512_sub_epi32(a, b); }
// x, x + 1, x + 2, … by lane.
CHUNKATTN_INLINE Vi count_from(int32_t x) {
  return _mm512_add_epi32(_mm512_set1_epi32(x), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}
CHUNKATTN_INLINE Vf to_float(Vi a) { return _mm512_cvtepi32_ps(a); }
// begin <= key < end in every lane.
CHUNKATTN_INLINE Mask in_range(Vi key, Vi begin, Vi end) {
  return _mm512_cmple_epi32_mask(begin, key) & _mm512_cmplt_epi32_mask(key, end);
}
CHUNKATTN_INLINE Mask has_bit(Vi words, int bit) {
  return _mm512_test_epi32_mask(words, _mm512_set1_epi32(static_cast<int32_t>(1u << bit)));
}

// A vector of 32-bit units of which only the first n (1 <= n) exist; the others read as 0.
CHUNKATTN_INLINE Vf load_first(const void* p, int64_t n) {
  if (n >= kLanes) return _mm512_loadu_ps(p);
  return _mm512_maskz_loadu_ps(static_cast<Mask>((1u << n) - 1), p);
}

// Of words that are pairs of bf16, all first and all second ones as floats.
CHUNKATTN_INLINE Vf first_of_pairs(Vf words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(words), 16));
}
CHUNKATTN_INLINE Vf second_of_pairs(Vf words) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(words), _mm512_set1_epi32(static_cast<int32_t>(0xffff0000))));
}

// Lane i of the result is the sum over the lanes of a[i].
CHUNKATTN_INLINE Vf sum_each(const Vf* a) {
  Vf pairs[8], quads[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d lo = _mm512_castps_pd(pairs[2 * i]), hi = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)), _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi)));
  }
  const Vf low =
      _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
  const Vf high =
      _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}
CHUNKATTN_INLINE float sum(Vf a) { return _mm512_reduce_add_ps(a); }
CHUNKATTN_INLINE float max_lane(Vf a) { return _mm512_reduce_max_ps(a); }

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
