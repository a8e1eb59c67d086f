// Moves, address conversions, selections, and predicates.
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
      if (cls == RegClass::B32 && parts == 2) inst.taint = Taint::Bytes, inst.immediate = 0x5410;
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

}  // namespace ptxemu
