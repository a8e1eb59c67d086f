// Reading rows of a paged pool into shared memory: page lookup by row, any page size, any strides.
#pragma once
#include <cstdint>

#include "chunkattn/core/divide.h"
#include "chunkattn/core/params.h"
#include "chunkattn/mma/shared_tile.cuh"
#include "chunkattn/ptx/cp_async.cuh"

namespace chunkattn {

// Widest access that a tensor's address and strides allow: 16, 8 or (by elements) 1.
enum class Access : int32_t { kElements = 1, k8 = 8, k16 = 16 };

constexpr int64_t kNoRow = -1;  // offset of a row that must not be read; zeros take its place

// 16 bytes whose address fits no wide access: slow, but right.
template <int kElementBytes>
__device__ inline void copy_chunk(uint32_t target, const char* source, int valid, Access access) {
  if (access == Access::k8) {
    ptx::cp_async<8>(target, source, min(valid, 8));
    ptx::cp_async<8>(target + 8, source + 8, max(valid - 8, 0));
    return;
  }
#pragma unroll 1
  for (int at = 0; at < 16; at += 4) {
    uint32_t word = 0;
#pragma unroll
    for (int byte = 0; byte < 4; byte += kElementBytes)
      if (at + byte < valid) {
        const uint32_t element = kElementBytes == 2 ? *reinterpret_cast<const uint16_t*>(source + at + byte)
                                                    : *reinterpret_cast<const uint8_t*>(source + at + byte);
        word |= element << (8 * byte);
      }
    ptx::store_shared(target + at, word);
  }
}

// A warp copies kRows rows of `row_bytes` bytes (a multiple of the element) to rows first_row… of a tile. Lane r gives
// the offset in bytes of row r % kRows from `base`. Bytes past a row's end become zeros.
template <int kRows, class Tile, int kElementBytes>
__device__ inline void copy_rows(uint32_t tile, int first_row, const char* base, int64_t offset_of_row, int row_bytes,
                                 Access access, int lane) {
  constexpr int kCount = kRows * Tile::kChunks, kCopies = (kCount + 31) / 32;
  // Where rows fill whole copies, a lane keeps its chunk and moves down by the same number of rows every time.
  constexpr bool kRegular = 32 % Tile::kChunks == 0;
  constexpr int kStep = kRegular ? 32 / Tile::kChunks : 0;
  asm volatile("" : "+r"(lane));  // keeps what follows from the lane out of the caller's loop, where it costs registers
  const uint32_t first = tile + Tile::offset(first_row + lane / Tile::kChunks, lane % Tile::kChunks);
  const auto copy = [&](int number, bool wide) {
    const int index = number * 32 + lane;
    const int row = kRegular ? number * kStep + lane / Tile::kChunks : index / Tile::kChunks;
    const int chunk = kRegular ? lane % Tile::kChunks : index % Tile::kChunks;
    const int64_t offset = __shfl_sync(0xffffffff, offset_of_row, row % kRows);
    if (kCount % 32 != 0 && row >= kRows) return;
    const int valid = offset < 0 ? 0 : min(max(row_bytes - chunk * 16, 0), 16);
    const char* source = base + (offset < 0 ? 0 : offset) + chunk * 16;
    const uint32_t target =
        kRegular ? Tile::moved(first, number * kStep, 0) : tile + Tile::offset(first_row + row, chunk);
    if (wide) {
      ptx::cp_async<16>(target, source, valid);
    } else {
      copy_chunk<kElementBytes>(target, source, valid, access);
    }
  };
  if (access == Access::k16) {
#pragma unroll
    for (int number = 0; number < kCopies; ++number) copy(number, true);
  } else {
#pragma unroll 1
    for (int number = 0; number < kCopies; ++number) copy(number, false);
  }
}

// Walks the key blocks of an item in ascending order and copies, block by block, first K then V. A warp copies kRows of
// the kWarps * kRows rows of a block; lane l looks up row l % kRows, one block ahead of its use.
template <int kRows, int kWarps, class KeyTile, class ValueTile, int kElementBytes>
class PagedLoader {
 public:
  static constexpr int kBlockRows = kRows * kWarps;

  // Keys outside [begin, end) are not read. Blocks begin at absolute multiples of kBlockRows.
  __device__ PagedLoader(const AttentionParams& p, const Divisor& page_size, Access key_access, Access value_access,
                         int32_t request, int32_t kv_head, int32_t begin, int32_t end, int32_t first_block, int warp,
                         int lane)
      : p_(p),
        page_size_(page_size),
        key_access_(key_access),
        value_access_(value_access),
        table_(p.batch.block_table + request * p.batch.block_table_stride_request),
        kv_head_(kv_head),
        begin_(begin),
        end_(end),
        first_row_(warp * kRows),
        lane_(lane),
        next_(first_block * kBlockRows + first_row_ + lane % kRows) {
    look_up();
  }

  // Steps to the next block: its rows' places are known already, those of the block after it are looked up.
  __device__ void advance() {
    page_ = next_page_;
    slot_ = next_slot_;
    next_ += kBlockRows;
    look_up();
  }
  // Where this lane's row of the block lies; slot() < 0: it is not read.
  __device__ int32_t page() const { return page_; }
  __device__ int32_t slot() const { return slot_; }

  // K of the block; `scales`: kBlockRows floats, or 0 where scales do not belong to tokens.
  __device__ void copy_keys(uint32_t tile, uint32_t scales) const {
    copy_rows<kRows, KeyTile, kElementBytes>(tile, first_row_, head_of(p_.k), offset(p_.k),
                                             static_cast<int>(p_.head_dim) * kElementBytes, key_access_, lane_);
    if (p_.k.scale.mode == ScaleMode::kPerTokenHead) load_scale(p_.k.scale, scales);
  }
  // V of the block.
  __device__ void copy_values(uint32_t tile, uint32_t scales) const {
    copy_rows<kRows, ValueTile, kElementBytes>(tile, first_row_, head_of(p_.v), offset(p_.v),
                                               static_cast<int>(p_.head_dim_v) * kElementBytes, value_access_, lane_);
    if (p_.v.scale.mode == ScaleMode::kPerTokenHead) load_scale(p_.v.scale, scales);
  }

 private:
  __device__ void look_up() {
    const bool visible = next_ >= begin_ && next_ < end_;
    const int32_t column = page_size_.quotient(visible ? next_ : begin_);
    next_slot_ = visible ? page_size_.remainder(next_, column) : -1;
    next_page_ = visible ? table_[column * p_.batch.block_table_stride_column] : 0;
  }
  __device__ const char* head_of(const PagedPool& pool) const {
    return static_cast<const char*>(pool.data) + kv_head_ * pool.stride_head * kElementBytes;
  }
  __device__ int64_t offset(const PagedPool& pool) const {
    return slot_ < 0 ? kNoRow : (page_ * pool.stride_page + slot_ * pool.stride_slot) * kElementBytes;
  }
  __device__ void load_scale(const KvScale& scale, uint32_t scales) const {
    if (lane_ >= kRows) return;
    const float* source = scale.data;
    if (slot_ >= 0) source += page_ * scale.stride_page + slot_ * scale.stride_slot + kv_head_ * scale.stride_head;
    ptx::cp_async<4>(scales + (first_row_ + lane_) * 4, source, slot_ >= 0 ? 4 : 0);
  }

  const AttentionParams& p_;
  const Divisor page_size_;
  const Access key_access_, value_access_;
  const int32_t* table_;
  const int32_t kv_head_, begin_, end_;
  const int first_row_, lane_;
  int32_t next_, next_slot_, slot_ = -1;
  int32_t next_page_, page_ = 0;
};

}  // namespace chunkattn
