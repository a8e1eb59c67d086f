// Element formats of matrix fragments and of tiles in shared memory.
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

/// The elements of a 32-bit register, low bytes first, as fp32. Products and sums of one instruction's
/// int8 elements are exact in fp32, so that integers take the same path.
inline int unpack_elements(MatrixType type, u32 bits, float* out) {
  switch (type) {
    case MatrixType::F16:
      out[0] = half_to_float(bits);
      out[1] = half_to_float(bits >> 16);
      return 2;
    case MatrixType::BF16:
      out[0] = bf16_to_float(bits);
      out[1] = bf16_to_float(bits >> 16);
      return 2;
    case MatrixType::TF32: out[0] = tf32_to_float(bits); return 1;
    default: break;
  }
  for (int k = 0; k < 4; k++) {
    const u8 byte = bits >> (8 * k);
    out[k] = type == MatrixType::E4M3   ? float8_table<E4m3>()[byte]
             : type == MatrixType::E5M2 ? float8_table<E5m2>()[byte]
             : type == MatrixType::S8   ? float(s8(byte))
                                        : float(byte);
  }
  return 4;
}

/// 16 bytes of shared memory as 4, 8 or 16 fp32 values.
inline int unpack_chunk(MatrixType type, const u8* bytes, float* out) {
  const u16* halves = reinterpret_cast<const u16*>(bytes);
  switch (type) {
    case MatrixType::F16:
      for (int k = 0; k < 8; k++) out[k] = half_to_float(halves[k]);
      return 8;
    case MatrixType::BF16:
      for (int k = 0; k < 8; k++) out[k] = bf16_to_float(halves[k]);
      return 8;
    default: break;
  }
  const u32* words = reinterpret_cast<const u32*>(bytes);
  int count = 0;
  for (int k = 0; k < 4; k++) count += unpack_elements(type, words[k], out + count);
  return count;
}

}  // namespace ptxemu
