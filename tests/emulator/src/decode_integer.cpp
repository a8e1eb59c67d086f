// Integer arithmetic and bit operations.
#include <algorithm>
#include <cstdlib>

#include "decoder.h"
#include "scalar_handlers.h"

namespace ptxemu {

namespace {

// Division by zero has no defined result in PTX; INT_MIN / -1 must not trap on the host.
constexpr auto divide = [](auto a, auto b) {
  using T = decltype(a);
  if (b == 0) return T(~T(0));
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return T(0 - std::make_unsigned_t<T>(a));
  return T(a / b);
};
constexpr auto remainder_of = [](auto a, auto b) {
  using T = decltype(a);
  if (b == 0) return T(a);
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return T(0);
  return T(a % b);
};

template <class T>
T extract_unsigned(T a, u32 start, u32 length) {
  constexpr u32 kBits = sizeof(T) * 8;
  start &= 255;
  length &= 255;
  if (!length || start >= kBits) return 0;
  const T shifted = a >> start;
  return length >= kBits ? shifted : shifted & ((T(1) << length) - 1);
}

template <class T>  // T unsigned; the result is sign-extended
T extract_signed(T a, u32 start, u32 length) {
  constexpr u32 kBits = sizeof(T) * 8;
  start &= 255;
  length &= 255;
  if (!length) return 0;
  const u32 sign_bit = std::min(start + length - 1, kBits - 1);
  const bool sign = a >> sign_bit & 1;
  const T field = start >= kBits ? 0 : a >> start;
  const u32 valid = start >= kBits ? 0 : std::min(length, kBits - start);
  if (valid >= kBits) return field;
  const T mask = (T(1) << valid) - 1;
  return (field & mask) | (sign ? T(~mask) : T(0));
}

u32 permute_bytes(u32 a, u32 b, u32 selector) {
  const u64 bytes = a | u64(b) << 32;
  u32 result = 0;
  for (int k = 0; k < 4; k++) {
    const u32 choice = selector >> (4 * k);
    u8 byte = bytes >> (8 * (choice & 7));
    if (choice & 8) byte = (byte & 0x80) ? 0xff : 0;  // replicate the sign
    result |= u32(byte) << (8 * k);
  }
  return result;
}

template <class T>
T reverse_bits(T value) {
  T result = 0;
  for (u32 k = 0; k < sizeof(T) * 8; k++) result |= ((value >> k) & 1) << (sizeof(T) * 8 - 1 - k);
  return result;
}

template <class T>
void exec_bfi(Warp& warp, const Instruction& inst) {
  constexpr u32 kBits = sizeof(T) * 8;
  FOR_ACTIVE_LANES (warp, lane) {
    const T insert = lanes<T>(warp, inst.operands[1])[lane];
    const T base = lanes<T>(warp, inst.operands[2])[lane];
    const u32 start = lanes<u32>(warp, inst.operands[3])[lane] & 255;
    const u32 length = lanes<u32>(warp, inst.operands[4])[lane] & 255;
    const T field = start >= kBits || !length ? 0 : (length >= kBits ? T(~T(0)) : T((T(1) << length) - 1)) << start;
    lanes<T>(warp, inst.operands[0])[lane] = (base & ~field) | (start >= kBits ? 0 : (insert << start) & field);
  }
}

void exec_lop3(Warp& warp, const Instruction& inst) {
  const u32* a = lanes<u32>(warp, inst.operands[1]);
  const u32* b = lanes<u32>(warp, inst.operands[2]);
  const u32* c = lanes<u32>(warp, inst.operands[3]);
  u32 result[kWarpSize] = {};
  for (int k = 0; k < 8; k++)
    if (inst.immediate >> k & 1)
      for (int l = 0; l < kWarpSize; l++)
        result[l] |= ((k & 4) ? a[l] : ~a[l]) & ((k & 2) ? b[l] : ~b[l]) & ((k & 1) ? c[l] : ~c[l]);
  store_result(lanes<u32>(warp, inst.operands[0]), result, warp.mask);
}

void exec_bmsk(Warp& warp, const Instruction& inst) {
  const bool wrap = inst.wait_all;
  FOR_ACTIVE_LANES (warp, lane) {
    u32 start = lanes<u32>(warp, inst.operands[1])[lane], length = lanes<u32>(warp, inst.operands[2])[lane];
    if (wrap) {
      start &= 31;
      length &= 31;
    }
    const u64 field = length >= 32 ? 0xffffffffull : (1ull << length) - 1;
    lanes<u32>(warp, inst.operands[0])[lane] = start >= 32 ? 0 : u32(field << start);
  }
}

/// add.cc, addc, sub.cc, subc: the carry is a predicate of the warp that no PTX register names.
template <bool kSubtract, bool kUseCarry, bool kSetCarry>
Handler carry_handler() {
  return [](Warp& warp, const Instruction& inst) {
    FOR_ACTIVE_LANES (warp, lane) {
      const u64 a = lanes<u32>(warp, inst.operands[1])[lane], b = lanes<u32>(warp, inst.operands[2])[lane];
      const u64 carry = kUseCarry ? warp.carry >> lane & 1 : 0;
      const u64 result = kSubtract ? a - b - carry : a + b + carry;
      lanes<u32>(warp, inst.operands[0])[lane] = u32(result);
      if (kSetCarry) warp.carry = (warp.carry & ~(1u << lane)) | u32(result >> 32 & 1) << lane;
    }
  };
}

Handler carry_handler(const Opcode& op) {
  const bool subtract = op.is("sub") || op.is("subc"), uses = op.is("addc") || op.is("subc"), sets = op.has("cc");
  if (op.cls != RegClass::B32) return nullptr;
  if (subtract) return uses ? (sets ? carry_handler<true, true, true>() : carry_handler<true, true, false>())
                            : carry_handler<true, false, true>();
  return uses ? (sets ? carry_handler<false, true, true>() : carry_handler<false, true, false>())
              : carry_handler<false, false, true>();
}

Handler shift_handler(const Opcode& op) {
  const bool is16 = op.cls == RegClass::B16, is32 = op.cls == RegClass::B32;
  if (op.is("shl")) {
    if (is16) return binary<u16, u16, u32>([](u16 a, u32 b) { return b > 15 ? 0 : a << b; });
    if (is32) return binary<u32, u32, u32>([](u32 a, u32 b) { return b > 31 ? 0 : a << b; });
    return binary<u64, u64, u32>([](u64 a, u32 b) { return b > 63 ? 0 : a << b; });
  }
  if (op.is_signed) {
    if (is16) return binary<s16, s16, u32>([](s16 a, u32 b) { return a >> (b > 15 ? 15 : b); });
    if (is32) return binary<s32, s32, u32>([](s32 a, u32 b) { return a >> (b > 31 ? 31 : b); });
    return binary<s64, s64, u32>([](s64 a, u32 b) { return a >> (b > 63 ? 63 : b); });
  }
  if (is16) return binary<u16, u16, u32>([](u16 a, u32 b) { return b > 15 ? 0 : a >> b; });
  if (is32) return binary<u32, u32, u32>([](u32 a, u32 b) { return b > 31 ? 0 : a >> b; });
  return binary<u64, u64, u32>([](u64 a, u32 b) { return b > 63 ? 0 : a >> b; });
}

Handler funnel_handler(const Opcode& op) {
  const bool left = op.has("l"), clamp = op.has("clamp");
  op.accept({"r", "wrap"});
  if (left && clamp)
    return ternary<u32, u32, u32, u32>(
        [](u32 a, u32 b, u32 c) { return c > 31 ? a : ((u64(b) << 32 | a) << c) >> 32; });
  if (left)
    return ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return ((u64(b) << 32 | a) << (c & 31)) >> 32; });
  if (clamp)
    return ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return c > 31 ? b : u32((u64(b) << 32 | a) >> c); });
  return ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return (u64(b) << 32 | a) >> (c & 31); });
}

Handler common_integer_binary(const Opcode& op) {
  if (op.is("add")) return bits_binary([](auto a, auto b) { return a + b; }, op.cls);
  if (op.is("sub")) return bits_binary([](auto a, auto b) { return a - b; }, op.cls);
  if (op.is("and")) return bits_binary([](auto a, auto b) { return a & b; }, op.cls);
  if (op.is("or")) return bits_binary([](auto a, auto b) { return a | b; }, op.cls);
  if (op.is("xor")) return bits_binary([](auto a, auto b) { return a ^ b; }, op.cls);
  if (op.has("relu")) {  // of s32, sm_90 on
    if (op.is("min")) return binary<s32, s32, s32>([](s32 a, s32 b) { return std::max(std::min(a, b), 0); });
    if (op.is("max")) return binary<s32, s32, s32>([](s32 a, s32 b) { return std::max({a, b, 0}); });
  }
  if (op.is("min")) return integer_binary([](auto a, auto b) { return a < b ? a : b; }, op);
  if (op.is("max")) return integer_binary([](auto a, auto b) { return a > b ? a : b; }, op);
  if (op.is("div")) return integer_binary(divide, op);
  if (op.is("rem")) return integer_binary(remainder_of, op);
  return nullptr;
}

Handler multiply_handler(const Opcode& op) {
  const RegClass cls = op.cls;
  if (op.has("wide")) {
    if (cls == RegClass::B16)
      return op.is_signed ? binary<s32, s16, s16>([](s32 a, s32 b) { return a * b; })
                          : binary<u32, u16, u16>([](u32 a, u32 b) { return a * b; });
    return op.is_signed ? binary<s64, s32, s32>([](s64 a, s64 b) { return a * b; })
                        : binary<u64, u32, u32>([](u64 a, u64 b) { return a * b; });
  }
  if (op.has("hi")) {
    if (cls == RegClass::B16)
      return op.is_signed ? binary<s16, s16, s16>([](s32 a, s32 b) { return (a * b) >> 16; })
                          : binary<u16, u16, u16>([](u32 a, u32 b) { return (a * b) >> 16; });
    if (cls == RegClass::B32)
      return op.is_signed ? binary<s32, s32, s32>([](s64 a, s64 b) { return (a * b) >> 32; })
                          : binary<u32, u32, u32>([](u64 a, u64 b) { return (a * b) >> 32; });
    return op.is_signed
               ? binary<s64, s64, s64>([](__int128 a, __int128 b) { return s64((a * b) >> 64); })
               : binary<u64, u64, u64>([](unsigned __int128 a, unsigned __int128 b) { return u64((a * b) >> 64); });
  }
  op.accept({"lo"});
  if (cls == RegClass::B16) return binary<u16, u16, u16>([](u32 a, u32 b) { return a * b; });
  return bits_binary([](auto a, auto b) { return a * b; }, cls);
}

Handler multiply_add_handler(const Opcode& op) {
  const RegClass cls = op.cls;
  if (op.has("wide")) {
    if (cls == RegClass::B16)
      return op.is_signed ? ternary<u32, s16, s16, u32>([](s32 a, s32 b, u32 c) { return u32(a * b) + c; })
                          : ternary<u32, u16, u16, u32>([](u32 a, u32 b, u32 c) { return a * b + c; });
    return op.is_signed ? ternary<u64, s32, s32, u64>([](s64 a, s64 b, u64 c) { return u64(a * b) + c; })
                        : ternary<u64, u32, u32, u64>([](u64 a, u64 b, u64 c) { return a * b + c; });
  }
  if (op.has("hi") && cls == RegClass::B32)
    return op.is_signed
               ? ternary<u32, s32, s32, u32>([](s64 a, s64 b, u32 c) { return u32((a * b) >> 32) + c; })
               : ternary<u32, u32, u32, u32>([](u64 a, u64 b, u32 c) { return u32((a * b) >> 32) + c; });
  if (!op.has("lo")) return nullptr;
  if (cls == RegClass::B16) return ternary<u16, u16, u16, u16>([](u32 a, u32 b, u32 c) { return a * b + c; });
  if (cls == RegClass::B32) return ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return a * b + c; });
  return ternary<u64, u64, u64, u64>([](u64 a, u64 b, u64 c) { return a * b + c; });
}

Handler bit_field_handler(const Opcode& op) {
  if (op.cls == RegClass::B64)
    return op.is_signed ? ternary<u64, u64, u32, u32>([](u64 a, u32 b, u32 c) { return extract_signed(a, b, c); })
                        : ternary<u64, u64, u32, u32>([](u64 a, u32 b, u32 c) { return extract_unsigned(a, b, c); });
  return op.is_signed ? ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return extract_signed(a, b, c); })
                      : ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return extract_unsigned(a, b, c); });
}

/// Instructions with one source.
Handler bit_count_handler(const Opcode& op) {
  const bool is64 = op.cls == RegClass::B64;
  if (op.is("popc"))
    return is64 ? unary<u32, u64>([](u64 a) { return __builtin_popcountll(a); })
                : unary<u32, u32>([](u32 a) { return __builtin_popcount(a); });
  if (op.is("clz"))
    return is64 ? unary<u32, u64>([](u64 a) { return a ? __builtin_clzll(a) : 64; })
                : unary<u32, u32>([](u32 a) { return a ? __builtin_clz(a) : 32; });
  if (op.is("bfind")) {
    const bool shift = op.has("shiftamt");
    if (op.is_signed) {
      if (shift) return nullptr;
      return unary<u32, s32>([](s32 a) {
        const u32 v = a < 0 ? ~u32(a) : u32(a);
        return v ? 31 - __builtin_clz(v) : ~0u;
      });
    }
    if (is64) return shift ? nullptr : unary<u32, u64>([](u64 a) { return a ? 63 - __builtin_clzll(a) : ~0u; });
    return shift ? unary<u32, u32>([](u32 a) { return a ? __builtin_clz(a) : ~0u; })
                 : unary<u32, u32>([](u32 a) { return a ? 31 - __builtin_clz(a) : ~0u; });
  }
  return nullptr;
}

}  // namespace

bool Decoder::decode_integer(Instruction& inst, const Opcode& op, const Operands& operands) {
  const RegClass cls = op.cls, b16 = RegClass::B16, b32 = RegClass::B32, b64 = RegClass::B64;
  if (op.is_float || cls == RegClass::B128) return false;
  inst.counter = CounterClass::Integer;

  const bool carries = op.is("addc") || op.is("subc") || ((op.is("add") || op.is("sub")) && op.has("cc"));
  if (carries) {
    push_all(inst, operands, {cls, cls, cls});
    inst.handler = carry_handler(op);
  } else if ((op.is("add") || op.is("sub")) && op.has("sat")) {
    push_all(inst, operands, {b32, b32, b32});
    inst.handler = op.is("add") ? binary<s32, s32, s32>([](s64 a, s64 b) {
      return s32(std::clamp<s64>(a + b, INT32_MIN, INT32_MAX));
    })
                                : binary<s32, s32, s32>([](s64 a, s64 b) {
                                    return s32(std::clamp<s64>(a - b, INT32_MIN, INT32_MAX));
                                  });
  } else if ((inst.handler = common_integer_binary(op))) {
    push_all(inst, operands, {cls, cls, cls});
  } else if (op.is("mul") || op.is("mul24")) {
    const RegClass result = !op.has("wide") ? cls : cls == b16 ? b32 : b64;
    push_all(inst, operands, {result, cls, cls});
    inst.handler = op.is("mul") ? multiply_handler(op) : nullptr;
  } else if (op.is("mad")) {
    const RegClass result = !op.has("wide") ? cls : cls == b16 ? b32 : b64;
    push_all(inst, operands, {result, cls, cls, result});
    inst.handler = multiply_add_handler(op);
  } else if (op.is("not")) {
    push_all(inst, operands, {cls, cls});
    inst.handler = bits_unary([](auto a) { return ~a; }, cls);
  } else if (op.is("cnot")) {
    push_all(inst, operands, {cls, cls});
    inst.handler = bits_unary([](auto a) { return a == 0 ? 1 : 0; }, cls);
  } else if (op.is("neg")) {
    push_all(inst, operands, {cls, cls});
    inst.handler = bits_unary([](auto a) { return 0 - a; }, cls);
  } else if (op.is("abs")) {
    push_all(inst, operands, {cls, cls});
    if (cls == b16) inst.handler = unary<u16, s16>([](s16 a) { return a < 0 ? -a : a; });
    if (cls == b32) inst.handler = unary<u32, s32>([](s32 a) { return a < 0 ? 0u - u32(a) : a; });
    if (cls == b64) inst.handler = unary<u64, s64>([](s64 a) { return a < 0 ? u64(0) - u64(a) : a; });
  } else if (op.is("shl") || op.is("shr")) {
    push_all(inst, operands, {cls, cls, b32});
    inst.handler = shift_handler(op);
  } else if (op.is("shf")) {
    push_all(inst, operands, {b32, b32, b32, b32});
    inst.handler = funnel_handler(op);
  } else if (op.is("bfe") && (cls == b32 || cls == b64)) {
    push_all(inst, operands, {cls, cls, b32, b32});
    inst.handler = bit_field_handler(op);
  } else if (op.is("bfi") && (cls == b32 || cls == b64)) {
    push_all(inst, operands, {cls, cls, cls, b32, b32});
    inst.handler = cls == b32 ? exec_bfi<u32> : exec_bfi<u64>;
  } else if (op.is("bmsk")) {
    inst.wait_all = op.has("wrap");
    op.accept({"clamp"});
    push_all(inst, operands, {b32, b32, b32});
    inst.handler = exec_bmsk;
  } else if (op.is("prmt") && op.type == "b32") {
    push_all(inst, operands, {b32, b32, b32, b32});
    inst.handler = ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute_bytes(a, b, c); });
    const std::string& selector = operands.at(3);
    if (isdigit(selector[0])) {
      inst.taint = Taint::Bytes;
      inst.immediate = strtoul(selector.c_str(), nullptr, 0);
    }
  } else if (op.is("lop3")) {
    push_all(inst, operands, {b32, b32, b32, b32});
    inst.immediate = strtoul(operands.at(4).c_str(), nullptr, 0);
    inst.handler = exec_lop3;
  } else if (op.is("sad") && cls == b32) {
    push_all(inst, operands, {b32, b32, b32, b32});
    inst.handler = op.is_signed
                       ? ternary<u32, s32, s32, u32>([](s64 a, s64 b, u32 c) { return c + u32(a < b ? b - a : a - b); })
                       : ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return c + (a < b ? b - a : a - b); });
  } else if (op.is("brev")) {
    push_all(inst, operands, {cls, cls});
    inst.handler = cls == b64 ? unary<u64, u64>([](u64 a) { return reverse_bits(a); })
                              : unary<u32, u32>([](u32 a) { return reverse_bits(a); });
  } else if ((inst.handler = bit_count_handler(op))) {
    push_all(inst, operands, {b32, cls});
  } else if (op.is("dp4a")) {
    push_all(inst, operands, {b32, b32, b32, b32});
    const std::string a_type = op.part(1);
    if (a_type != op.type) reject(op);
    inst.handler = op.is_signed ? ternary<s32, u32, u32, s32>([](u32 a, u32 b, s32 c) {
      for (int k = 0; k < 4; k++) c += s32(s8(a >> (8 * k))) * s8(b >> (8 * k));
      return c;
    })
                                : ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) {
                                    for (int k = 0; k < 4; k++) c += u32(u8(a >> (8 * k))) * u8(b >> (8 * k));
                                    return c;
                                  });
  } else {
    return false;
  }
  return true;
}

}  // namespace ptxemu
