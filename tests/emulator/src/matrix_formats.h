// Element formats of matrix fragments and of tiles in shared memory, and the product of small tiles.
#pragma once
#include "instruction.h"
#include "number_formats.h"

namespace ptxemu {

inline int matrix_bytes(MatrixType type) {
  switch (type) {
    case MatrixType::F16:
    case MatrixType::BF16: return 2;
    case MatrixType::TF32: return 4;
    default: return 1;
  }
}

/// Converts kBytes of elements to fp32, in memory order. Products and sums of one instruction's int8 elements
/// are exact in fp32, so that integers take the same path.
template <int kBytes>
inline void unpack_elements(MatrixType type, const void* bytes, float* out) {
  static_assert(kBytes % 16 == 0);
  const u8* codes = static_cast<const u8*>(bytes);
  const u16* halves = static_cast<const u16*>(bytes);
  const u32* words = static_cast<const u32*>(bytes);
  switch (type) {
    case MatrixType::F16:
      for (int k = 0; k < kBytes / 2; k += 8)
        _mm256_storeu_ps(out + k, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + k))));
      break;
    case MatrixType::BF16:
      for (int k = 0; k < kBytes / 2; k++) out[k] = bf16_to_float(halves[k]);
      break;
    case MatrixType::TF32:
      for (int k = 0; k < kBytes / 4; k++) out[k] = tf32_to_float(words[k]);
      break;
    case MatrixType::E4M3:
      for (int k = 0; k < kBytes; k++) out[k] = float8_table<E4m3>()[codes[k]];
      break;
    case MatrixType::E5M2:
      for (int k = 0; k < kBytes; k++) out[k] = float8_table<E5m2>()[codes[k]];
      break;
    case MatrixType::S8:
      for (int k = 0; k < kBytes; k++) out[k] = float(s8(codes[k]));
      break;
    case MatrixType::U8:
      for (int k = 0; k < kBytes; k++) out[k] = float(codes[k]);
      break;
  }
}

/// sums[m][n] = sum over k of a[m][k] * b[k][n] for 16 rows; n in blocks of kLanes, k ascending.
template <int kLanes>
inline void multiply_tile(const float* a, int a_stride, const float* b, int b_stride, float* sums, int sum_stride, int N,
                          int K) {
  typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));
  constexpr int kRows = 4;
  for (int n = 0; n < N; n += kLanes)
    for (int m = 0; m < 16; m += kRows) {
      Vector total[kRows] = {};
      for (int k = 0; k < K; k++) {
        const Vector row = *reinterpret_cast<const Vector*>(b + k * b_stride + n);
        for (int i = 0; i < kRows; i++) total[i] += row * a[(m + i) * a_stride + k];
      }
      for (int i = 0; i < kRows; i++) *reinterpret_cast<Vector*>(sums + (m + i) * sum_stride + n) = total[i];
    }
}

}  // namespace ptxemu
