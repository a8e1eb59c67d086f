// Moves, predicates and integer arithmetic.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "decoder.h"
#include "handlers.h"
#include "scalar_handlers.h"
#include "text.h"

namespace ptxemu {

// ---------------------------------------------------------------- mov, cvta, selp

namespace {

template <class Whole, class Part>
void exec_unpack(Warp& warp, const Instruction& inst) {
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  FOR_ACTIVE_LANES (warp, lane) {
    const Whole value = lanes<Whole>(warp, inst.operands[kParts])[lane];
    for (int k = 0; k < kParts; k++)
      lanes<Part>(warp, inst.operands[k])[lane] = Part(value >> (8 * sizeof(Part) * k));
  }
}

template <class Whole, class Part>
void exec_pack(Warp& warp, const Instruction& inst) {
  constexpr int kParts = sizeof(Whole) / sizeof(Part);
  FOR_ACTIVE_LANES (warp, lane) {
    Whole value = 0;
    for (int k = 0; k < kParts; k++)
      value |= Whole(lanes<Part>(warp, inst.operands[1 + k])[lane]) << (8 * sizeof(Part) * k);
    lanes<Whole>(warp, inst.operands[0])[lane] = value;
  }
}

/// mov.b32 between a register and four bytes kept in 16-bit registers.
template <bool kPack>
void exec_bytes(Warp& warp, const Instruction& inst) {
  FOR_ACTIVE_LANES (warp, lane) {
    if (kPack) {
      u32 value = 0;
      for (int k = 0; k < 4; k++) value |= u32(lanes<u16>(warp, inst.operands[1 + k])[lane] & 0xff) << (8 * k);
      lanes<u32>(warp, inst.operands[0])[lane] = value;
    } else {
      const u32 value = lanes<u32>(warp, inst.operands[4])[lane];
      for (int k = 0; k < 4; k++) lanes<u16>(warp, inst.operands[k])[lane] = value >> (8 * k) & 0xff;
    }
  }
}

template <bool kPack>
void exec_wide(Warp& warp, const Instruction& inst) {  // mov.b128 {lo, hi}
  FOR_ACTIVE_LANES (warp, lane) {
    u8* wide = warp.registers + inst.operands[kPack ? 0 : 2] + 16 * lane;
    for (int k = 0; k < 2; k++) {
      u64& part = lanes<u64>(warp, inst.operands[kPack ? 1 + k : k])[lane];
      kPack ? memcpy(wide + 8 * k, &part, 8) : memcpy(&part, wide + 8 * k, 8);
    }
  }
}

template <class T>
void exec_select(Warp& warp, const Instruction& inst) {
  const T* a = lanes<T>(warp, inst.operands[1]);
  const T* b = lanes<T>(warp, inst.operands[2]);
  const u32 choice = predicate(warp, inst.operands[3]);
  T result[kWarpSize];
  for (int l = 0; l < kWarpSize; l++) result[l] = (choice >> l & 1) ? a[l] : b[l];
  store_result(lanes<T>(warp, inst.operands[0]), result, warp.mask);
}

Handler unpack_handler(RegClass cls, size_t parts) {
  if (cls == RegClass::B64 && parts == 2) return exec_unpack<u64, u32>;
  if (cls == RegClass::B64 && parts == 4) return exec_unpack<u64, u16>;
  if (cls == RegClass::B32 && parts == 2) return exec_unpack<u32, u16>;
  if (cls == RegClass::B32 && parts == 4) return exec_bytes<false>;
  if (cls == RegClass::B16 && parts == 2) return exec_unpack<u16, u8>;
  if (cls == RegClass::B128 && parts == 2) return exec_wide<false>;
  return nullptr;
}

Handler pack_handler(RegClass cls, size_t parts) {
  if (cls == RegClass::B64 && parts == 2) return exec_pack<u64, u32>;
  if (cls == RegClass::B64 && parts == 4) return exec_pack<u64, u16>;
  if (cls == RegClass::B32 && parts == 2) return exec_pack<u32, u16>;
  if (cls == RegClass::B32 && parts == 4) return exec_bytes<true>;
  if (cls == RegClass::B128 && parts == 2) return exec_wide<true>;
  return nullptr;
}

RegClass part_class(RegClass cls, size_t parts) {
  const int bytes = cls == RegClass::B128 ? 16 : cls == RegClass::B64 ? 8 : 4;
  const int part = bytes / int(parts);
  return part == 8 ? RegClass::B64 : part == 4 ? RegClass::B32 : RegClass::B16;
}

}  // namespace

bool Decoder::decode_move(Instruction& inst, const Opcode& op, const Operands& operands) {
  const RegClass cls = op.cls;
  if (op.is("mov")) {
    inst.counter = CounterClass::Move;
    if (operands.at(0)[0] == '{') {  // mov.b64 {lo, hi}, x
      const size_t parts = vector_elements(operands[0]).size();
      inst.handler = unpack_handler(cls, parts);
      if (cls == RegClass::B16) reject(op);
      push_vector(inst, operands[0], part_class(cls, parts));
      inst.definitions = inst.operands.size();
      push(inst, operands.at(1), cls);
    } else if (operands.at(1)[0] == '{') {  // mov.b64 x, {lo, hi}
      const size_t parts = vector_elements(operands[1]).size();
      inst.handler = pack_handler(cls, parts);
      push(inst, operands[0], cls);
      push_vector(inst, operands[1], part_class(cls, parts));
    } else if (cls == RegClass::Pred) {
      inst.operands = {operand(operands[0], RegClass::Pred).id, plain_predicate(operands[1])};
      inst.handler = [](Warp& warp, const Instruction& i) {
        set_predicate(warp, i.operands[0], predicate(warp, i.operands[1]));
      };
    } else if (operands[1] == "%clock" || operands[1] == "%clock64" || operands[1] == "%globaltimer" ||
               operands[1] == "%clock_hi" || operands[1] == "%globaltimer_lo") {
      push(inst, operands[0], cls);
      inst.value64 = cls == RegClass::B64;
      inst.handler = exec_clock;
    } else {
      push(inst, operands[0], cls, op.is_float);
      const Register source = operand(operands[1], cls, op.is_float);
      inst.operands.push_back(source.id);
      if (cls == RegClass::B64 && source.cls == RegClass::B32)  // a special register
        inst.handler = unary<u64, u32>(identity);
      else if (source.cls == cls)
        inst.handler = bits_unary(identity, cls);
      if (cls == RegClass::B128)
        inst.handler = [](Warp& warp, const Instruction& i) {
          FOR_ACTIVE_LANES (warp, lane)
            memcpy(warp.registers + i.operands[0] + 16 * lane, warp.registers + i.operands[1] + 16 * lane, 16);
        };
    }
    return true;
  }
  if (op.is("cvta")) {
    inst.counter = CounterClass::Move;
    push_all(inst, operands, {cls, cls});
    const bool to_space = op.has("to");
    if (op.has("shared") || op.has("shared::cta") || op.has("shared::cluster"))
      inst.handler = to_space ? unary<u64, u64>([](u64 a) { return a - kSharedWindow; })
                              : unary<u64, u64>([](u64 a) { return a + kSharedWindow; });
    else if (op.has("local"))
      inst.handler = to_space ? unary<u64, u64>([](u64 a) { return a - kLocalWindow; })
                              : unary<u64, u64>([](u64 a) { return a + kLocalWindow; });
    else if (op.has("param") || op.has("param::entry"))
      inst.handler = to_space ? unary<u64, u64>([](u64 a) { return a - kParamWindow; })
                              : unary<u64, u64>([](u64 a) { return a + kParamWindow; });
    else if (op.has("global") || op.has("const"))
      inst.handler = unary<u64, u64>(identity);
    return true;
  }
  if (op.is("selp")) {
    inst.counter = CounterClass::Move;
    inst.taint = Taint::Select;
    push_all(inst, operands, {cls, cls, cls}, op.is_float);
    inst.operands.push_back(plain_predicate(operands.at(3)));
    inst.handler = cls == RegClass::B16   ? exec_select<u16>
                   : cls == RegClass::B32 ? exec_select<u32>
                   : cls == RegClass::B64 ? exec_select<u64>
                                          : nullptr;
    return true;
  }
  return false;
}

// ---------------------------------------------------------------- setp and predicate logic

namespace {

template <class T>
Handler integer_compare(const std::string& name) {
  if (name == "eq") return compare<T>([](T a, T b) { return a == b; });
  if (name == "ne") return compare<T>([](T a, T b) { return a != b; });
  if (name == "lt" || name == "lo") return compare<T>([](T a, T b) { return a < b; });
  if (name == "le" || name == "ls") return compare<T>([](T a, T b) { return a <= b; });
  if (name == "gt" || name == "hi") return compare<T>([](T a, T b) { return a > b; });
  if (name == "ge" || name == "hs") return compare<T>([](T a, T b) { return a >= b; });
  return nullptr;
}

/// The "u" forms are also true if an operand is NaN.
template <class T>
Handler float_compare(const std::string& name) {
  if (name == "eq") return compare<T>([](T a, T b) { return a == b; });
  if (name == "ne") return compare<T>([](T a, T b) { return a < b || a > b; });
  if (name == "lt") return compare<T>([](T a, T b) { return a < b; });
  if (name == "le") return compare<T>([](T a, T b) { return a <= b; });
  if (name == "gt") return compare<T>([](T a, T b) { return a > b; });
  if (name == "ge") return compare<T>([](T a, T b) { return a >= b; });
  if (name == "equ") return compare<T>([](T a, T b) { return !(a < b || a > b); });
  if (name == "neu") return compare<T>([](T a, T b) { return !(a == b); });
  if (name == "ltu") return compare<T>([](T a, T b) { return !(a >= b); });
  if (name == "leu") return compare<T>([](T a, T b) { return !(a > b); });
  if (name == "gtu") return compare<T>([](T a, T b) { return !(a <= b); });
  if (name == "geu") return compare<T>([](T a, T b) { return !(a < b); });
  if (name == "num") return compare<T>([](T a, T b) { return !(a != a || b != b); });
  if (name == "nan") return compare<T>([](T a, T b) { return a != a || b != b; });
  return nullptr;
}

Handler compare_handler(const std::string& name, const std::string& type) {
  if (type == "s16") return integer_compare<s16>(name);
  if (type == "u16" || type == "b16") return integer_compare<u16>(name);
  if (type == "s32") return integer_compare<s32>(name);
  if (type == "u32" || type == "b32") return integer_compare<u32>(name);
  if (type == "s64") return integer_compare<s64>(name);
  if (type == "u64" || type == "b64") return integer_compare<u64>(name);
  if (type == "f32") return float_compare<float>(name);
  if (type == "f64") return float_compare<double>(name);
  return nullptr;
}

template <class F>
Handler predicate_logic(F) {
  return [](Warp& warp, const Instruction& i) {
    set_predicate(warp, i.operands[0], F{}(predicate(warp, i.operands[1]), predicate(warp, i.operands[2])));
  };
}

}  // namespace

bool Decoder::decode_predicate(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (op.is("setp")) {  // setp.lt.and.s32 p|q, a, b, c
    if (op.type == "f16" || op.type == "bf16" || op.type == "f16x2" || op.type == "bf16x2") return false;
    inst.counter = CounterClass::Predicate;
    inst.handler = compare_handler(op.part(1), op.type);
    inst.combine = op.has("and")   ? Combine::And
                   : op.has("or")  ? Combine::Or
                   : op.has("xor") ? Combine::Xor
                                   : Combine::None;
    op.accept({"ftz"});
    const auto [p, q] = split_at_bar(operands.at(0));
    inst.operands.push_back(p == "_" ? new_register(RegClass::Pred, "_") : operand(p, RegClass::Pred).id);
    inst.classes.push_back(RegClass::Pred);
    if (!q.empty() && q != "_") inst.predicate_out = operand(q, RegClass::Pred).id;
    push(inst, operands.at(1), op.cls, op.is_float);
    push(inst, operands.at(2), op.cls, op.is_float);
    if (inst.combine != Combine::None) {
      inst.operands.push_back(predicate_operand(operands.at(3), inst.predicate_negated));
      if (inst.combine == Combine::And) inst.taint = Taint::AndLogic;
      if (inst.combine == Combine::Or) inst.taint = Taint::OrLogic;
    }
    return true;
  }
  if (op.cls != RegClass::Pred) return false;
  inst.counter = CounterClass::Predicate;
  inst.operands = {operand(operands.at(0), RegClass::Pred).id, plain_predicate(operands.at(1)),
                   plain_predicate(operands.size() > 2 ? operands[2] : operands.at(1))};
  if (op.is("and")) inst.handler = predicate_logic([](u32 a, u32 b) { return a & b; });
  if (op.is("or")) inst.handler = predicate_logic([](u32 a, u32 b) { return a | b; });
  if (op.is("xor")) inst.handler = predicate_logic([](u32 a, u32 b) { return a ^ b; });
  if (op.is("not")) inst.handler = predicate_logic([](u32 a, u32) { return ~a; });
  if (op.is("and")) inst.taint = Taint::AndLogic;
  if (op.is("or")) inst.taint = Taint::OrLogic;
  return true;
}

// ---------------------------------------------------------------- integers

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
