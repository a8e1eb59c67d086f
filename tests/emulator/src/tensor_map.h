// The emulator's own contents of the opaque 128-byte CUtensorMap.
//
// Written by tensormap.replace (device) and by the fake cuTensorMapEncodeTiled (host), read by the TMA
// engine. Also the checks that the real encoder makes.
#pragma once
#include <cstdint>

namespace ptxemu {

constexpr std::uint64_t kTensorMapMagic = 0x50414d54554d4531ull;
constexpr int kTensorMapBytes = 128;

/// Shared-memory swizzle modes, numbered as in the two top bits of a wgmma descriptor.
enum Swizzle : std::uint8_t { kSwizzleNone = 0, kSwizzle128B = 1, kSwizzle64B = 2, kSwizzle32B = 3 };

/// Element types, numbered as CUtensorMapDataType and as .elemtype of tensormap.replace.
enum ElementType : std::uint8_t {
  kElementU8, kElementU16, kElementU32, kElementS32, kElementU64, kElementS64, kElementF16, kElementF32,
  kElementF64, kElementBF16, kElementF32Ftz, kElementTF32, kElementTF32Ftz, kElementTypes
};
inline int element_type_bytes(unsigned type) {
  static const int bytes[kElementTypes] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return type < kElementTypes ? bytes[type] : 0;
}

struct TensorMap {
  std::uint64_t magic;
  std::uint64_t address;
  std::uint8_t rank;
  std::uint8_t element_type;
  std::uint8_t swizzle;
  std::uint8_t fill_nan;  // out-of-bounds elements become NaN instead of 0
  std::uint32_t dim[5];   // elements, innermost first
  std::uint64_t stride[4];  // bytes, of dimensions 1..
  std::uint16_t box[5];     // elements
  std::uint16_t element_stride[5];

  int element_bytes() const { return element_type_bytes(element_type); }
};
static_assert(sizeof(TensorMap) <= kTensorMapBytes);

/// Why the hardware would refuse this map; nullptr if it is fine.
inline const char* tensor_map_error(const TensorMap& map) {
  if (map.rank < 1 || map.rank > 5) return "rank must be 1 to 5";
  const std::uint64_t element = map.element_bytes();
  if (!element) return "unknown element type";
  if (map.address % 16) return "global address must be a multiple of 16";
  for (int k = 0; k < map.rank; k++) {
    if (map.dim[k] == 0 && map.address != 0) return "a dimension is 0";
    if (map.box[k] < 1 || map.box[k] > 256) return "box extents must be 1 to 256";
    if (map.element_stride[k] < 1 || map.element_stride[k] > 8) return "element strides must be 1 to 8";
    if (k > 0 && (map.stride[k - 1] % 16 || map.stride[k - 1] >= 1ull << 40))
      return "strides must be multiples of 16 below 2^40";
  }
  const std::uint64_t inner = map.box[0] * element;
  if (inner % 16) return "the inner box extent must be a multiple of 16 bytes";
  static const std::uint64_t span[] = {~0ull, 128, 64, 32};
  if (inner > span[map.swizzle & 3]) return "the inner box extent must not exceed the swizzle span";
  return nullptr;
}

/// XOR swizzle of a shared-memory address; it permutes 16-byte chunks.
inline std::uint32_t swizzle_address(std::uint32_t address, int mode) {
  constexpr std::uint32_t kMask[] = {0, 0x70, 0x30, 0x10};  // by mode
  return address ^ ((address >> 3) & kMask[mode & 3]);
}

}  // namespace ptxemu
