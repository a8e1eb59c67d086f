// Tiles in shared memory: rows of 16-byte chunks, permuted so that ldmatrix meets no bank conflict.
#pragma once
#include <cstdint>

#include "chunkattn/ptx/matrix.cuh"

namespace chunkattn {

// Eight neighbouring rows at one chunk must fall into eight different groups of four banks. Rows whose pitch is a
// multiple of 128 bytes need all eight from the permutation; other pitches bring some of them along.
template <int kRowBytes>
struct SharedTile {
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kBits = kChunks % 8 == 0 ? 3 : kChunks % 4 == 0 ? 2 : 1;
  static_assert(kRowBytes % 32 == 0, "chunks are exchanged in pairs at least");

  __device__ static int permutation(int row) { return (row >> (3 - kBits)) & ((1 << kBits) - 1); }
  __device__ static uint32_t offset(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ permutation(row)) << 4));
  }
};

// Where one lane reads the fragments of a tile. Moving by a multiple of 8 rows or to another chunk is then a constant
// or one exclusive-or.
template <int kRowBytes>
class FragmentReader {
 public:
  using Tile = SharedTile<kRowBytes>;

  // Lanes 16…31 begin one chunk to the right, lanes 8…15 eight rows further down: operand A, and transposed B.
  __device__ static FragmentReader rows_then_chunks(uint32_t tile, int lane) {
    return FragmentReader(tile, lane % 16, lane / 16);
  }
  // The other way round: operand B.
  __device__ static FragmentReader chunks_then_rows(uint32_t tile, int lane) {
    return FragmentReader(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }

  // `row` a multiple of 8, `chunk` even; `tile` moves the reader to another tile of the same shape, in bytes.
  __device__ void load(uint32_t (&to)[4], int row, int chunk, uint32_t tile = 0) const {
    ptx::ldmatrix(to, address(row, chunk) + tile);
  }
  __device__ void load_transposed(uint32_t (&to)[4], int row, int chunk, uint32_t tile = 0) const {
    ptx::ldmatrix_transposed(to, address(row, chunk) + tile);
  }

 private:
  __device__ FragmentReader(uint32_t tile, int row, int chunk)
      : row_(tile + row * kRowBytes), chunk_((chunk ^ Tile::permutation(row)) << 4) {}

  __device__ uint32_t address(int row, int chunk) const {
    constexpr int kSpan = (1 << Tile::kBits) - 1;
    return row_ + (chunk_ ^ ((chunk & kSpan) << 4)) + ((chunk & ~kSpan) << 4) + row * kRowBytes;
  }

  uint32_t row_, chunk_;
};

}  // namespace chunkattn
