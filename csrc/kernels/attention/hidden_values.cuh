// NaN and infinities of V at keys that some rows of a tile see and others do not.
//
// A weight of 0 does not hide them in a product. So where rows differ in what they see, V is looked through before it
// is multiplied: what is found goes to the rows that see it, one element after the other, and becomes 0 in shared
// memory.
#pragma once
#include "chunkattn/kv/element.cuh"
#include "chunkattn/kv/widen.cuh"
#include "chunkattn/mma/multiply.cuh"
#include "chunkattn/ptx/barrier.cuh"
#include "kernels/attention/key_blocks.cuh"

namespace chunkattn {

// Bits that are all set in the elements of a word that are NaN or infinite, and in no others. int8 has none.
template <DType kType>
constexpr uint32_t kNonFiniteBits = kType == DType::kBF16   ? 0x7f80
                                    : kType == DType::kF16  ? 0x7c00
                                    : kType == DType::kE5M2 ? 0x7c
                                                            : 0x7f;

// V of a block in shared memory. Keys are numbered from the block's first one.
template <class Config, class Tile>
class HiddenValues {
 public:
  // `scales`: of the block's keys, or nullptr where scales do not belong to tokens.
  __device__ HiddenValues(char* values, float* scales) : values_(values), scales_(scales) {}

  // Whether any of the keys [first, first + kCount) has a NaN or infinity. All lanes of a warp get the answer.
  template <int kCount>
  __device__ bool found(int first, int lane) const {
    bool found = scales_ && lane < kCount && !isfinite(scales_[first + lane]);
#pragma unroll 1
    for (int i = lane; i < kCount * Tile::kChunks; i += 32) {
      const uint4 words =
          *reinterpret_cast<const uint4*>(values_ + Tile::offset(first + i / Tile::kChunks, i % Tile::kChunks));
      found |= (finite(words.x) & finite(words.y) & finite(words.z) & finite(words.w)) != ~0u;
    }
    return __any_sync(0xffffffff, found);
  }

  // Makes them 0.
  template <int kCount>
  __device__ void clear(int first, int lane) {
    if (scales_ && lane < kCount && !isfinite(scales_[first + lane])) scales_[first + lane] = 0.0f;
#pragma unroll 1
    for (int i = lane; i < kCount * Tile::kChunks * 4; i += 32) {
      const int key = first + i / 4 / Tile::kChunks;
      uint32_t& word = *word_at(key, i / 4 % Tile::kChunks, i % 4);
      word &= finite(word);
    }
  }

  // Adds them to the sums of those rows of `tile` that see their keys. `first_row`: packed row of the tile's first one.
  template <class RowTile>
  __device__ void give(RowTile& tile, const KernelParams& p, const Task& task, int32_t first_row, int32_t block_key,
                       int first, int count) const {
    const VisibleKeys visible = visible_keys(p, task);
#pragma unroll 1
    for (int key = first; key < first + count; ++key) {
      bool sees[RowTile::kRows];
#pragma unroll
      for (int row = 0; row < RowTile::kRows; ++row)
        sees[row] = tile.mask(row, visible, p, task, first_row).sees(visible, block_key + key);
      const float scale = scales_ ? scales_[key] : 1.0f;
#pragma unroll
      for (int v = 0; v < RowTile::kV; v += kTiles) {
        float x[kElements];
        widen_word(*word_at(key, v / kTiles, tile.lane % 4), x);
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          x[i] *= scale;
#pragma unroll
          for (int row = 0; row < RowTile::kRows; ++row)
            if (sees[row] && !isfinite(x[i])) tile.out[row / 2][v + i % kTiles][row % 2 * 2 + i / kTiles] += x[i];
        }
      }
    }
  }

 private:
  static constexpr int kElements = 4 / Config::kElementBytes;  // of a word
  static constexpr int kTiles = Config::kQuantised ? 2 : 1;  // of 8 columns, between which a word's elements alternate

  __device__ uint32_t* word_at(int key, int chunk, int word) const {
    return reinterpret_cast<uint32_t*>(values_ + Tile::offset(key, chunk) + word * 4);
  }
  // Ones where a word's elements are finite, zeros where they are not.
  __device__ static uint32_t finite(uint32_t word) {
    if constexpr (Config::kKvType == DType::kI8) return ~0u;
    constexpr int kWidth = 32 / kElements;
    constexpr uint32_t kBits = kNonFiniteBits<Config::kKvType>, kAll = (uint64_t{1} << kWidth) - 1;
    uint32_t kept = ~0u;
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      if ((word >> i * kWidth & kBits) == kBits) kept &= ~(kAll << i * kWidth);
    return kept;
  }
  __device__ static void widen_word(uint32_t word, float (&x)[kElements]) {
    if constexpr (Config::kQuantised) {
      const WidePairs pairs = widen<Config::kKvType>(word);
      const float2 even = __half22float2(as_half2(pairs.even)), odd = __half22float2(as_half2(pairs.odd));
      x[0] = even.x, x[1] = odd.x, x[2] = even.y, x[3] = odd.y;
    } else {
      const float2 pair = Multiply<Config::kCompute>::unpack(word);
      x[0] = pair.x, x[1] = pair.y;
    }
  }

  char* const values_;
  float* const scales_;
};

}  // namespace chunkattn
