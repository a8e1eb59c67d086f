// The vector type of the instruction set this translation unit is compiled for, and functions over it.
//
// Every header in this folder is compiled once per instruction set, inside namespace CHUNKATTN_ISA, so that no
// symbol holding AVX-512 code can be picked by the linker for a machine without it. For the same reason nothing
// here calls templates of the standard library.
#pragma once
#include <cstdint>

#ifndef CHUNKATTN_ISA
#error "define CHUNKATTN_ISA (the namespace of the instruction set) before including"
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace chunkattn {
namespace CHUNKATTN_ISA {

constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;
constexpr float kInfinity = __builtin_inff();

CHUNKATTN_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
CHUNKATTN_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
CHUNKATTN_INLINE int64_t round_up_to(int64_t a, int64_t unit) { return (a + unit - 1) / unit * unit; }

// 2^x; 2^0 is exactly 1, 2^-inf exactly 0, NaN stays NaN. Minimax polynomials of 2^f on [-1/2, 1/2] with the
// constant term fixed at 1: relative error 9e-8 (degree 5) or 2e-9 (degree 6).
template <int kDegree = 6>
CHUNKATTN_INLINE Vf exp2_of(Vf x) {
  x = max(splat(kExp2Floor), x);  // keeps -inf out of x - round(x)
#ifndef __AVX512F__
  x = select(less(splat(128.0f), x), splat(128.0f), x);
#endif
  const Vf n = round(x), f = sub(x, n);
  Vf p;
  if constexpr (kDegree == 5) {
    p = splat(0.001326472731307149f);
    p = madd(p, f, splat(0.009671512991189957f));
    p = madd(p, f, splat(0.05550733581185341f));
    p = madd(p, f, splat(0.24022242426872253f));
    p = madd(p, f, splat(0.6931470036506653f));
  } else {
    p = splat(0.00015353361959569156f);
    p = madd(p, f, splat(0.0013398875016719103f));
    p = madd(p, f, splat(0.00961843691766262f));
    p = madd(p, f, splat(0.055503323674201965f));
    p = madd(p, f, splat(0.24022647738456726f));
    p = madd(p, f, splat(0.6931471824645996f));
  }
  return scale_by_power(madd(p, f, splat(1.0f)), n);
}

// Below 0.625 an odd polynomial (relative error 6e-10), above 1 - 2 / (e^2|x| + 1).
CHUNKATTN_INLINE Vf tanh_of(Vf x) {
  const Vf size = abs(x), square = mul(x, x);
  Vf p = splat(0.002293503610417247f);
  p = madd(p, square, splat(-0.008344754576683044f));
  p = madd(p, square, splat(0.02176923118531704f));
  p = madd(p, square, splat(-0.05395931378006935f));
  p = madd(p, square, splat(0.13333304226398468f));
  p = madd(p, square, splat(-0.3333333432674408f));
  const Vf small = madd(mul(x, square), p, x);
  // e^2|x| is infinite from 44 on, where 1 - 2 / inf = 1 is right.
  const Vf e = exp2_of(mul(size, splat(2.0f * kLog2e)));
  const Vf large = copy_sign(sub(splat(1.0f), div(splat(2.0f), add(e, splat(1.0f)))), x);
  return select(less(size, splat(0.625f)), small, large);
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
