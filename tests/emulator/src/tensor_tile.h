// The box of a tensor that a tensor copy moves: its rows and chunks, and what of them lies inside the tensor.
#pragma once
#include <algorithm>

#include "tensor_map.h"
#include "types.h"

namespace ptxemu {

/// A run of bytes of a tensor tile: one 16-byte chunk of shared memory.
struct TileChunk {
  u32 shared_offset;   // from the start of the tile, before the swizzle
  u64 global_address;  // of the first element that is inside the tensor
  u32 skip, bytes;     // where the bytes inside the tensor lie in the chunk; bytes 0: all outside
};

inline u32 tile_bytes(const TensorMap& map) {
  u32 elements = 1;
  for (int k = 0; k < map.rank; k++) elements *= (map.box[k] + map.element_stride[k] - 1) / map.element_stride[k];
  return elements * map.element_bytes();
}

/// A row of a tile along the innermost dimension, and the part of it that lies inside the tensor.
struct TileRow {
  u32 shared_offset;
  u64 global_address;
  u32 skip, bytes;  // bytes 0: all outside
};

/// Calls visit(row) for all rows of a tile.
template <class F>
void for_each_tile_row(const TensorMap& map, const s32* coordinates, F visit) {
  const s64 element = map.element_bytes();
  u32 extent[5];
  for (int k = 0; k < 5; k++)
    extent[k] = k < map.rank ? (map.box[k] + map.element_stride[k] - 1) / map.element_stride[k] : 1;
  const s64 first = coordinates[0];
  const s64 begin = std::max<s64>(first, 0), end = std::min<s64>(first + extent[0], map.dim[0]);
  const u32 row_bytes = extent[0] * element;
  u32 offset = 0;
  for (u32 i4 = 0; i4 < extent[4]; i4++)
    for (u32 i3 = 0; i3 < extent[3]; i3++)
      for (u32 i2 = 0; i2 < extent[2]; i2++)
        for (u32 i1 = 0; i1 < extent[1]; i1++, offset += row_bytes) {
          const u32 index[5] = {0, i1, i2, i3, i4};
          bool inside = begin < end;
          u64 base = map.address;
          for (int k = 1; k < map.rank; k++) {
            const s64 at = s64(coordinates[k]) + s64(index[k]) * map.element_stride[k];
            inside &= at >= 0 && at < s64(map.dim[k]);
            base += at * map.stride[k - 1];
          }
          TileRow row{offset, 0, 0, 0};
          if (inside)
            row = {offset, base + begin * element, u32((begin - first) * element), u32((end - begin) * element)};
          visit(row);
        }
}

/// The chunk that begins at a byte of a row.
inline TileChunk chunk_of_row(const TileRow& row, u32 byte) {
  const u32 begin = std::max(byte, row.skip), end = std::min(byte + 16, row.skip + row.bytes);
  if (begin >= end) return {row.shared_offset + byte, 0, 0, 0};
  return {row.shared_offset + byte, row.global_address + (begin - row.skip), begin - byte, end - begin};
}

/// Calls visit(chunk) for all chunks of a tile, innermost dimension first.
template <class F>
void for_each_tile_chunk(const TensorMap& map, const s32* coordinates, F visit) {
  const u32 row_bytes = map.box[0] * map.element_bytes();  // element strides are refused where a copy is issued
  for_each_tile_row(map, coordinates, [&](const TileRow& row) {
    for (u32 byte = 0; byte < row_bytes; byte += 16) visit(chunk_of_row(row, byte));
  });
}

}  // namespace ptxemu
