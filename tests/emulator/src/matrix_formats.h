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

/// Sixteen fp32 lanes: one row of A or of a product each.
typedef float Rows __attribute__((vector_size(64), aligned(64)));

/// Where row m of A lies among the sixteen lanes. In this order the transposition below leaves every lane of the
/// warp where the accumulator fragment wants it.
constexpr int row_lane(int m) { return m % 4 * 4 + m / 4; }

/// Transposes 16x16: interleaving the upper and the lower half of the rows four times.
inline void transpose(Rows (&rows)[16]) {
  for (int pass = 0; pass < 4; pass++) {
    Rows mixed[16];
    for (int r = 0; r < 8; r++) {
      mixed[2 * r] =
          __builtin_shufflevector(rows[r], rows[r + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      mixed[2 * r + 1] =
          __builtin_shufflevector(rows[r], rows[r + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    memcpy(rows, mixed, sizeof rows);
  }
}

/// The products of 16 rows of A and 8 columns of B as accumulator registers: sums[2 * h + o] holds, in lane
/// 4 * g + q, row g + 8 * h and column 2 * q + o. Summed over k, ascending.
///
/// a: [K], rows by row_lane(). b: element (k, n) at b[k * k_stride + n * n_stride].
inline void multiply_fragment(const Rows* a, const float* b, int k_stride, int n_stride, int K, float (*sums)[32]) {
  Rows total[8] = {};
  for (int k = 0; k < K; k++) {
    const float* column = b + k * k_stride;
    for (int n = 0; n < 8; n++) total[n] += a[k] * column[n * n_stride];
  }
  for (int o = 0; o < 2; o++) {
    // Four columns; a 4x4 transposition within every quarter of the vectors.
    const Rows c0 = total[o], c1 = total[o + 2], c2 = total[o + 4], c3 = total[o + 6];
#define PTXEMU_LOW 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define PTXEMU_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define PTXEMU_FIRST 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define PTXEMU_SECOND 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
    const Rows low01 = __builtin_shufflevector(c0, c1, PTXEMU_LOW),
               high01 = __builtin_shufflevector(c0, c1, PTXEMU_HIGH);
    const Rows low23 = __builtin_shufflevector(c2, c3, PTXEMU_LOW),
               high23 = __builtin_shufflevector(c2, c3, PTXEMU_HIGH);
    Rows* even = reinterpret_cast<Rows*>(sums[o]);
    Rows* odd = reinterpret_cast<Rows*>(sums[2 + o]);
    even[0] = __builtin_shufflevector(low01, low23, PTXEMU_FIRST);
    even[1] = __builtin_shufflevector(low01, low23, PTXEMU_SECOND);
    odd[0] = __builtin_shufflevector(high01, high23, PTXEMU_FIRST);
    odd[1] = __builtin_shufflevector(high01, high23, PTXEMU_SECOND);
#undef PTXEMU_LOW
#undef PTXEMU_HIGH
#undef PTXEMU_FIRST
#undef PTXEMU_SECOND
  }
}

/// Element e of a fragment register of all lanes, as fp32.
inline void unpack_lanes(MatrixType type, const u32* words, int e, float* out) {
  switch (type) {
    case MatrixType::F16: {
      u16 halves[32];
      for (int lane = 0; lane < 32; lane++) halves[lane] = u16(words[lane] >> (16 * e));
      unpack_elements<64>(type, halves, out);
      break;
    }
    case MatrixType::BF16:
      for (int lane = 0; lane < 32; lane++) out[lane] = bf16_to_float(u16(words[lane] >> (16 * e)));
      break;
    case MatrixType::TF32:
      for (int lane = 0; lane < 32; lane++) out[lane] = tf32_to_float(words[lane]);
      break;
    case MatrixType::E4M3:
      for (int lane = 0; lane < 32; lane++) out[lane] = float8_table<E4m3>()[u8(words[lane] >> (8 * e))];
      break;
    case MatrixType::E5M2:
      for (int lane = 0; lane < 32; lane++) out[lane] = float8_table<E5m2>()[u8(words[lane] >> (8 * e))];
      break;
    case MatrixType::S8:
      for (int lane = 0; lane < 32; lane++) out[lane] = float(s8(words[lane] >> (8 * e)));
      break;
    case MatrixType::U8:
      for (int lane = 0; lane < 32; lane++) out[lane] = float(u8(words[lane] >> (8 * e)));
      break;
  }
}

typedef u16 Halves8 __attribute__((vector_size(16)));
typedef u32 Words8 __attribute__((vector_size(32)));
typedef float Floats8 __attribute__((vector_size(32)));

inline Floats8 halves_to_floats(Halves8 halves) { return Floats8(_mm256_cvtph_ps(__m128i(halves))); }

/// float_to_half() of eight, zero-extended.
inline Words8 floats_to_halves(Floats8 values) {
  const auto halves = Halves8(_mm256_cvtps_ph(__m256(values), _MM_FROUND_TO_NEAREST_INT));
  return values == values ? __builtin_convertvector(halves, Words8) : Words8{} + 0x7fff;
}

/// The accumulators of 32 lanes that hold two f16 each: the fp32 sums, added to `old` if there is one, and rounded.
inline void store_half_pairs(const u32* old, const float* even, const float* odd, u32* pairs) {
  for (int lane = 0; lane < 32; lane += 8) {
    Floats8 low, high;
    memcpy(&low, even + lane, sizeof low);
    memcpy(&high, odd + lane, sizeof high);
    if (old) {
      Words8 words;
      memcpy(&words, old + lane, sizeof words);
      low += halves_to_floats(__builtin_convertvector(words, Halves8));
      high += halves_to_floats(__builtin_convertvector(words >> 16, Halves8));
    }
    const Words8 result = floats_to_halves(low) | floats_to_halves(high) << 16;
    memcpy(pairs + lane, &result, sizeof result);
  }
}

}  // namespace ptxemu
