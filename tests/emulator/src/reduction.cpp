#include "reduction.h"

#include <algorithm>
#include <cmath>

#include "number_formats.h"

namespace ptxemu {
namespace {

template <class T>
T combine_integer(AtomicOp op, T old, T value, T swap) {
  switch (op) {
    case AtomicOp::Add: return T(old + value);
    case AtomicOp::Min: return std::min(old, value);
    case AtomicOp::Max: return std::max(old, value);
    case AtomicOp::And: return old & value;
    case AtomicOp::Or: return old | value;
    case AtomicOp::Xor: return old ^ value;
    case AtomicOp::Exchange: return value;
    case AtomicOp::Increment: return old >= value ? 0 : T(old + 1);
    case AtomicOp::Decrement: return old == 0 || old > value ? value : T(old - 1);
    default: return old == value ? swap : old;
  }
}

template <class T>
T combine_float(AtomicOp op, T old, T value) {
  switch (op) {
    case AtomicOp::Add: return old + value;
    case AtomicOp::Min: return std::fmin(old, value);
    case AtomicOp::Max: return std::fmax(old, value);
    default: return value;
  }
}

u16 combine_half(AtomicOp op, u16 old, u16 value, bool is_bf16) {
  if (op == AtomicOp::Exchange) return value;
  if (is_bf16) return float_to_bf16(combine_float(op, bf16_to_float(old), bf16_to_float(value)));
  return float_to_half(combine_float(op, half_to_float(old), half_to_float(value)));
}

template <class T>
T from_bytes(const u8* bytes) {
  T value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
u64 to_bits(T value) {
  u64 bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

}  // namespace

u64 combine_bits(AtomicOp op, ScalarType type, const u8* memory, u64 value, u64 swap) {
  const u8* operand = reinterpret_cast<const u8*>(&value);
  switch (type) {
    case ScalarType::S32:
      return u32(combine_integer<s32>(op, from_bytes<s32>(memory), s32(value), s32(swap)));
    case ScalarType::S64:
      return u64(combine_integer<s64>(op, from_bytes<s64>(memory), s64(value), s64(swap)));
    case ScalarType::U64:
    case ScalarType::B64: return combine_integer<u64>(op, from_bytes<u64>(memory), value, swap);
    case ScalarType::B16: return combine_integer<u16>(op, from_bytes<u16>(memory), u16(value), u16(swap));
    case ScalarType::F32: return to_bits(combine_float(op, from_bytes<float>(memory), from_bytes<float>(operand)));
    case ScalarType::F64: return to_bits(combine_float(op, from_bytes<double>(memory), from_bytes<double>(operand)));
    case ScalarType::F16:
    case ScalarType::BF16:
      return combine_half(op, from_bytes<u16>(memory), u16(value), type == ScalarType::BF16);
    case ScalarType::F16x2:
    case ScalarType::BF16x2: {
      const bool is_bf16 = type == ScalarType::BF16x2;
      return combine_half(op, from_bytes<u16>(memory), u16(value), is_bf16) |
             u32(combine_half(op, from_bytes<u16>(memory + 2), u16(value >> 16), is_bf16)) << 16;
    }
    default: return combine_integer<u32>(op, from_bytes<u32>(memory), u32(value), u32(swap));
  }
}

}  // namespace ptxemu
