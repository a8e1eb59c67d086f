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

// Of a chunk of 16 bytes, those that a row of `row_bytes` has.
__device__ inline int valid_bytes(int row_bytes, int chunk) { return min(max(row_bytes - chunk * 16, 0), 16); }

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
  const uint32_t place = lane;    // without a sign it is divided by a shift
  const uint32_t first = tile + Tile::offset(first_row + place / Tile::kChunks, place % Tile::kChunks);
  const auto copy = [&](int number, bool wide) {
    const uint32_t index = number * 32 + place;
    const uint32_t row = kRegular ? number * kStep + place / Tile::kChunks : index / Tile::kChunks;
    const int chunk = kRegular ? place % Tile::kChunks : index % Tile::kChunks;
    const int64_t offset = __shfl_sync(0xffffffff, offset_of_row, row % kRows);
    if (kCount % 32 != 0 && row >= kRows) return;
    const uint32_t target =
        kRegular ? Tile::moved(first, number * kStep, 0) : tile + Tile::offset(first_row + row, chunk);
    if (wide && kElementBytes == 2) {  // all of a chunk or nothing: rows are multiples of 8 elements
      ptx::cp_async_unless(offset < 0 || chunk * 16 >= row_bytes, target, base + offset + chunk * 16);
      return;
    }
    const int valid = offset < 0 ? 0 : valid_bytes(row_bytes, chunk);
    const char* source = base + (offset < 0 ? 0 : offset) + chunk * 16;
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

// Whether copy_neighbours() can: a lane keeps its chunk, and has one in every copy.
template <int kRows, class Tile>
constexpr bool kFillsCopies = 32 % Tile::kChunks == 0 && kRows * Tile::kChunks % 32 == 0;

// The same for rows that lie `stride` bytes from each other, by accesses of 16 bytes and without a shuffle. `own_row`:
// row lane / Tile::kChunks; bit r of `seen`: row r may be read.
template <int kRows, class Tile, int kElementBytes>
__device__ inline void copy_neighbours(uint32_t tile, int first_row, const char* own_row, int32_t stride, uint32_t seen,
                                       int head_dim, int lane) {
  static_assert(kFillsCopies<kRows, Tile>);
  const uint32_t row = static_cast<uint32_t>(lane) / Tile::kChunks, chunk = static_cast<uint32_t>(lane) % Tile::kChunks;
  const uint32_t first = tile + Tile::offset(first_row + row, chunk);
  seen >>= row;
  if (static_cast<int>(chunk) * (16 / kElementBytes) >= head_dim) seen = 0;
#pragma unroll
  for (int at = 0; at < kRows; at += 32 / Tile::kChunks) {
    const uint32_t target = Tile::moved(first, at, 0);
    const char* from = own_row + static_cast<int64_t>(stride) * at + chunk * 16;
    const bool skip = (seen & (1u << at)) == 0;
    if constexpr (kElementBytes == 2) {
      ptx::cp_async_unless(skip, target, from);
    } else {
      ptx::cp_async<16>(target, from, skip ? 0 : valid_bytes(head_dim, chunk));
    }
  }
}

// Walks the key blocks of an item in ascending order and copies, block by block, first K then V. A warp copies kRows of
// the kWarps * kRows rows of a block; lane l looks up row l % kRows, one block ahead of its use.
template <int kRows, int kWarps, class KeyTile, class ValueTile, int kElementBytes>
class PagedLoader {
 public:
  static constexpr int kBlockRows = kRows * kWarps;

  // Keys outside [begin, end) are not read. Blocks begin at absolute multiples of kBlockRows. `neighbour_rows`: so many
  // rows, from a multiple of it on, lie on one page, near enough for 32 bits and as 16-byte accesses want them.
  __device__ PagedLoader(const AttentionParams& p, const Divisor& page_size, Access key_access, Access value_access,
                         int32_t neighbour_rows, int32_t request, int32_t kv_head, int32_t begin, int32_t end,
                         int32_t first_block, int warp, int lane)
      : p_(p),
        page_size_(page_size),
        key_access_(key_access),
        value_access_(value_access),
        neighbour_rows_(neighbour_rows),
        table_(p.batch.block_table + request * p.batch.block_table_stride_request),
        kv_head_(kv_head),
        begin_(begin),
        end_(end),
        lane_(lane),
        next_(first_block * kBlockRows + warp * kRows + lane % kRows) {
    if (begin < end) look_up();
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
    copy<KeyTile>(p_.k, static_cast<int>(p_.head_dim), key_access_, tile, scales);
  }
  // V of the block.
  __device__ void copy_values(uint32_t tile, uint32_t scales) const {
    copy<ValueTile>(p_.v, static_cast<int>(p_.head_dim_v), value_access_, tile, scales);
  }

 private:
  // Rows outside [begin, end) get the place of the nearest one inside, which is on the same page if a page has both.
  __device__ void look_up() {
    const int32_t key = min(max(next_, begin_), end_ - 1), column = page_size_.quotient(key);
    next_slot_ = page_size_.remainder(key, column) | (key == next_ ? 0 : kHidden);
    const bool some = (next_ & -kRows) < end_;  // of the warp's rows
    next_page_ = some ? table_[static_cast<uint32_t>(column) * p_.batch.block_table_stride_column] : 0;
  }
  template <class Tile>
  __device__ void copy(const PagedPool& pool, int head_dim, Access access, uint32_t tile, uint32_t scales) const {
    uint32_t kv_head = kv_head_;
    int lane = lane_;
    asm volatile("" : "+r"(kv_head), "+r"(lane));  // as in copy_rows()
    const char* head = static_cast<const char*>(pool.data) + kv_head * pool.stride_head * kElementBytes;
    bool near = false;
    if constexpr (kFillsCopies<kRows, Tile>) near = neighbour_rows_ >= kRows;
    if (near) {
      if constexpr (kFillsCopies<kRows, Tile>)
        copy_neighbours<kRows, Tile, kElementBytes>(
            tile, first_row(),
            head + place_of(pool, (slot_ & ~(kHidden | (kRows - 1))) + static_cast<uint32_t>(lane) / Tile::kChunks),
            static_cast<int32_t>(pool.stride_slot) * kElementBytes, __ballot_sync(0xffffffff, slot_ >= 0), head_dim,
            lane);
    } else {
      copy_rows<kRows, Tile, kElementBytes>(tile, first_row(), head, slot_ < 0 ? kNoRow : place_of(pool, slot_),
                                            head_dim * kElementBytes, access, lane);
    }
    if (pool.scale.mode == ScaleMode::kPerTokenHead) load_scale(pool.scale, scales);
  }
  __device__ int64_t place_of(const PagedPool& pool, int32_t slot) const {
    return (static_cast<uint32_t>(page_) * pool.stride_page + static_cast<uint32_t>(slot) * pool.stride_slot) *
           kElementBytes;
  }
  __device__ void load_scale(const KvScale& scale, uint32_t scales) const {
    const int64_t place = page_ * scale.stride_page + slot_ * scale.stride_slot + kv_head_ * scale.stride_head;
    ptx::cp_async_word_if(lane_ < kRows, slot_ < 0, scales + (first_row() + lane_) * 4, scale.data + place);
  }
  // The warp's, in the tile; found anew, which holds no register in the caller's loop.
  __device__ int first_row() const { return next_ & (kBlockRows - kRows); }

  static_assert((kBlockRows & (kBlockRows - 1)) == 0 && (kRows & (kRows - 1)) == 0, "a key's bits tell its warp");
  static constexpr int32_t kHidden = INT32_MIN;  // the bit of a slot that is not read

  const AttentionParams& p_;
  const Divisor page_size_;
  const Access key_access_, value_access_;
  const int32_t neighbour_rows_;
  const int32_t* table_;
  const int32_t kv_head_, begin_, end_;
  const int lane_;
  int32_t next_, next_slot_ = kHidden, slot_ = kHidden;
  int32_t next_page_ = 0, page_ = 0;
};

}  // namespace chunkattn
