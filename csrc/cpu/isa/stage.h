// Copies a block of keys or values out of the pages into the layout and compute type of the products.
#pragma once
#include "compute.h"
#include "rows.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// A block is [block_begin, block_begin + kBlockKeys); only keys [begin, end) of it exist for the item. The others, up
// to multiples of kTileBroadcasts keys, are zeros: dead memory may hold NaN and 0 * NaN is not 0.
struct Block {
  int64_t block_begin, begin, end;
};

template <class Compute>
struct Stage {
  uint32_t* keys;    // [kBlockKeys][head_dim units]
  uint32_t* values;  // [head_dim_v / kTileBroadcasts] panels of [kBlockKeys units][kTileBroadcasts], kPanel apart
  float* key_scale;  // [kBlockKeys], with a scale per token
  float* value_scale;
  uint32_t* rows;    // two converted rows of V
  int64_t* offsets;  // [kBlockKeys]

  static constexpr int64_t kUnits = Compute::kBlockKeys / Compute::kPerUnit;
  // A line more than the panel: a row of V is scattered over all panels, which must not fall in the same sets of L1.
  static constexpr int64_t kPanel = kUnits * kTileBroadcasts + 16;

  static int64_t first_tile_key(const Block& b) { return (b.begin - b.block_begin) / 8 * 8; }
  static int64_t last_tile_key(const Block& b) { return round_up_to(b.end - b.block_begin, 8); }

  void load_keys(const AttentionParams& p, const KeyAddress& address, const Block& block, int64_t kv_head) {
    const int64_t units = p.head_dim / Compute::kPerUnit;
    const RowConverter convert = row_converter<Compute>(p.k.dtype);
    const int64_t first = block.begin - block.block_begin, last = block.end - block.block_begin;
    address.offsets(block.begin, block.end, offsets);
    const char* base = static_cast<const char*>(p.k.data) + kv_head * p.k.stride_head * address.bytes;
    zero_rows(first_tile_key(block), first, units);
    convert(base, offsets, last - first, keys + first * units, p.head_dim);
    zero_rows(last, last_tile_key(block), units);
    if (p.k.scale.mode == ScaleMode::kPerTokenHead) load_scales(address, block, kv_head, key_scale);
  }

  void load_values(const AttentionParams& p, const KeyAddress& address, const Block& block, int64_t kv_head) {
    const RowConverter convert = row_converter<Compute>(p.v.dtype);
    const bool native = p.v.dtype == Compute::kNative;
    address.offsets(block.begin, block.end, offsets);
    const char* base = static_cast<const char*>(p.v.data) + kv_head * p.v.stride_head * address.bytes;
    for (int64_t key = first_tile_key(block); key < last_tile_key(block); key += Compute::kPerUnit) {
      const void* sources[Compute::kPerUnit];
      for (int64_t i = 0; i < Compute::kPerUnit; ++i) {
        uint32_t* row = rows + i * (p.head_dim_v / Compute::kPerUnit);
        const int64_t position = block.block_begin + key + i;
        const bool exists = position >= block.begin && position < block.end;
        const int64_t* offset = offsets + (position - block.begin);
        sources[i] = exists && native ? static_cast<const void*>(base + *offset) : row;
        if (!exists) memset(row, 0, p.head_dim_v / Compute::kPerUnit * 4);
        if (exists && !native) convert(base, offset, 1, row, p.head_dim_v);
      }
      place(sources, key / Compute::kPerUnit, p.head_dim_v);
    }
    if (p.v.scale.mode == ScaleMode::kPerTokenHead) load_scales(address, block, kv_head, value_scale);
  }

  // Calls found(key in block, column, value) for every NaN or infinity of the staged values and puts 0 in its place.
  template <class Found>
  void take_poison(const Block& block, int64_t columns, Found found) {
    for (int64_t key = first_tile_key(block); key < last_tile_key(block); ++key)
      for (int64_t column = 0; column < columns; ++column) {
        uint32_t* unit = values + column / kTileBroadcasts * kPanel + key / Compute::kPerUnit * kTileBroadcasts +
                         column % kTileBroadcasts;
        uint32_t bits = *unit, keep = 0;
        if constexpr (Compute::kPerUnit == 2) {
          keep = key % 2 ? *unit & 0xffff : *unit & 0xffff0000;
          bits = key % 2 ? *unit & 0xffff0000 : *unit << 16;
        }
        if ((bits & 0x7f800000) != 0x7f800000) continue;
        *unit = keep;
        found(key, column, float_from_bits(bits));
      }
  }

 private:
  void zero_rows(int64_t first, int64_t last, int64_t units) {
    if (first < last) memset(keys + first * units, 0, (last - first) * units * 4);
  }

  void load_scales(const KeyAddress& address, const Block& block, int64_t kv_head, float* target) {
    for (int64_t i = first_tile_key(block); i < last_tile_key(block); ++i) target[i] = 1.0f;
    address.scales(block.begin, block.end, kv_head, target + (block.begin - block.block_begin));
  }

  // Unit `unit` of every panel from the rows of its keys.
  void place(const void* const* sources, int64_t unit, int64_t columns) {
    uint32_t* target = values + unit * kTileBroadcasts;
    if constexpr (Compute::kPerUnit == 1) {
      for (int64_t c = 0; c < columns; c += kTileBroadcasts, target += kPanel)
        memcpy(target, static_cast<const uint32_t*>(sources[0]) + c, kTileBroadcasts * 4);
    } else {
#if defined(__AVX512BF16__)
      const char* even = static_cast<const char*>(sources[0]);
      const char* odd = static_cast<const char*>(sources[1]);
      for (int64_t c = 0; c < columns; c += 8, target += kPanel) {
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + c * 2));
        const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + c * 2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm_unpacklo_epi16(a, b));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target) + 1, _mm_unpackhi_epi16(a, b));
      }
#endif
    }
  }
};

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
