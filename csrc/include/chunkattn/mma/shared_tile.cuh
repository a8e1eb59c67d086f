// Tiles in shared memory: rows of 16-byte chunks, permuted so that ldmatrix meets no bank conflict.
#pragma once
#include <cstdint>

#include "chunkattn/ptx/matrix.cuh"

namespace chunkattn {

// Rows of kRowBytes, each kPitch bytes after the one before it.
//
// Eight neighbouring rows at one chunk must fall into eight different groups of four banks. Rows whose pitch is a
// multiple of 128 bytes need all eight from the permutation; other pitches bring some of them along.
template <int kRowBytes, int kPitch = kRowBytes>
struct SharedTile {
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kBits = kPitch % 128 == 0 ? 3 : kPitch % 64 == 0 ? 2 : 1;
  static_assert(kPitch % 32 == 0, "chunks are exchanged in pairs at least");
  static_assert(kRowBytes <= kPitch && kChunks % (1 << kBits) == 0, "a permuted row stays within its bytes");

  __device__ static int permutation(int row) { return (row >> (3 - kBits)) & ((1 << kBits) - 1); }
  __device__ static uint32_t offset(int row, int chunk) {
    return static_cast<uint32_t>(row * kPitch + ((chunk ^ permutation(row)) << 4));
  }

  // An address `rows` and `chunks` further on; neither may carry into the bits that the place it starts from has.
  __device__ static uint32_t moved(uint32_t address, int rows, int chunks) {
    constexpr int kSpan = (1 << kBits) - 1;
    static_assert(kPitch % (16 << kBits) == 0, "the permuted bits of an address come from the chunk alone");
    return (address ^ (((chunks & kSpan) ^ permutation(rows)) << 4)) + ((chunks & ~kSpan) << 4) + rows * kPitch;
  }
};

// The same for tiles that tensor copies write and wgmma reads: columns of 128 bytes, kRows rows of the one below those
// of the other, with the permutation that the hardware calls a swizzle of 128 bytes.
template <int kRows, int kRowBytes>
struct ColumnTile {
  using Column = SharedTile<128>;
  static constexpr int kChunks = kRowBytes / 16, kColumns = kRowBytes / 128, kColumnBytes = kRows * 128;
  static constexpr int kBytes = kColumns * kColumnBytes;
  static_assert(kRowBytes % 128 == 0 && kRows % 8 == 0, "the permutation repeats after 8 rows of 128 bytes");

  __device__ static uint32_t offset(int row, int chunk) {
    return chunk / 8 * kColumnBytes + Column::offset(row, chunk % 8);
  }
  __device__ static uint32_t moved(uint32_t address, int rows, int chunks) {
    return Column::moved(address, rows, chunks % 8) + chunks / 8 * kColumnBytes;
  }
};

// Where one lane reads the fragments of a tile. Moving by a multiple of 8 rows is then a constant, another chunk one
// exclusive-or.
template <class Tile_>
class TileReader {
 public:
  using Tile = Tile_;

  // Lanes 16…31 begin one chunk to the right, lanes 8…15 eight rows further down: operand A, and transposed B.
  __device__ static TileReader rows_then_chunks(uint32_t tile, int lane) {
    return TileReader(tile + Tile::offset(lane % 16, lane / 16));
  }
  // The other way round: operand B.
  __device__ static TileReader chunks_then_rows(uint32_t tile, int lane) {
    return TileReader(tile + Tile::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2));
  }

  // 32 rows of one chunk: operand B of 8-bit elements, of which a chunk is 16 deep.
  __device__ static TileReader rows_of_chunk(uint32_t tile, int lane) {
    return TileReader(tile + Tile::offset(lane, 0));
  }

  // The same place of a tile `bytes` further on. What is derived from it is computed where it is used: hoisted out of
  // the main loop, the addresses of all chunks would cost a dozen registers.
  __device__ TileReader moved(uint32_t bytes) const {
    uint32_t address = address_ + bytes;
    asm volatile("" : "+r"(address));
    return TileReader(address);
  }

  // `row` a multiple of 8; `chunk` even, except for rows_of_chunk().
  __device__ void load(uint32_t (&to)[4], int row, int chunk) const {
    ptx::ldmatrix(to, Tile::moved(address_, row, chunk));
  }
  __device__ void load_transposed(uint32_t (&to)[4], int row, int chunk) const {
    ptx::ldmatrix_transposed(to, Tile::moved(address_, row, chunk));
  }

 private:
  __device__ explicit TileReader(uint32_t address) : address_(address) {}

  uint32_t address_;
};

template <int kRowBytes>
using FragmentReader = TileReader<SharedTile<kRowBytes>>;

}  // namespace chunkattn
