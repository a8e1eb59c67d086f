// Templates that turn one captureless lambda into a handler.
//
// The loop over 32 lanes has no branches, so that the compiler makes vector code of it. Lanes outside the
// mask are computed and thrown away: a lambda must not trap on any input.
#pragma once
#include <type_traits>

#include "machine.h"
#include "opcode.h"

namespace ptxemu {

template <class D>
inline void store_result(D* destination, const D* result, u32 mask) {
  if (mask == kFullMask)
    memcpy(destination, result, kWarpSize * sizeof(D));
  else
    for (int l = 0; l < kWarpSize; l++) destination[l] = (mask >> l & 1) ? result[l] : destination[l];
}

// F is the type of a captureless lambda: F{} makes the function again inside the handler.

template <class D, class A, class F>
Handler unary(F) {
  static_assert(std::is_empty_v<F>);
  return [](Warp& warp, const Instruction& inst) {
    const A* a = lanes<A>(warp, inst.operands[1]);
    D result[kWarpSize];
    for (int l = 0; l < kWarpSize; l++) result[l] = D(F{}(a[l]));
    store_result(lanes<D>(warp, inst.operands[0]), result, warp.mask);
  };
}

template <class D, class A, class B, class F>
Handler binary(F) {
  static_assert(std::is_empty_v<F>);
  return [](Warp& warp, const Instruction& inst) {
    const A* a = lanes<A>(warp, inst.operands[1]);
    const B* b = lanes<B>(warp, inst.operands[2]);
    D result[kWarpSize];
    for (int l = 0; l < kWarpSize; l++) result[l] = D(F{}(a[l], b[l]));
    store_result(lanes<D>(warp, inst.operands[0]), result, warp.mask);
  };
}

template <class D, class A, class B, class C, class F>
Handler ternary(F) {
  static_assert(std::is_empty_v<F>);
  return [](Warp& warp, const Instruction& inst) {
    const A* a = lanes<A>(warp, inst.operands[1]);
    const B* b = lanes<B>(warp, inst.operands[2]);
    const C* c = lanes<C>(warp, inst.operands[3]);
    D result[kWarpSize];
    for (int l = 0; l < kWarpSize; l++) result[l] = D(F{}(a[l], b[l], c[l]));
    store_result(lanes<D>(warp, inst.operands[0]), result, warp.mask);
  };
}

inline u32 combine_predicate(const Instruction& inst, u32 value, u32 other) {
  switch (inst.combine) {
    case Combine::And: return value & other;
    case Combine::Or: return value | other;
    case Combine::Xor: return value ^ other;
    default: return value;
  }
}

/// operands: p, a, b [, c]; predicate_out: q.
template <class A, class F>
Handler compare(F) {
  static_assert(std::is_empty_v<F>);
  return [](Warp& warp, const Instruction& inst) {
    const A* a = lanes<A>(warp, inst.operands[1]);
    const A* b = lanes<A>(warp, inst.operands[2]);
    u32 result = 0, other = 0;
    for (int l = 0; l < kWarpSize; l++) result |= u32(bool(F{}(a[l], b[l]))) << l;
    if (inst.combine != Combine::None) other = predicate(warp, inst.operands[3]);
    if (inst.predicate_negated) other = ~other;
    set_predicate(warp, inst.operands[0], combine_predicate(inst, result, other));
    if (inst.predicate_out >= 0) set_predicate(warp, inst.predicate_out, combine_predicate(inst, ~result, other));
  };
}

/// The same lambda for an integer type of any width and signedness.
template <class F>
Handler integer_binary(F f, const Opcode& op) {
  switch (op.cls) {
    case RegClass::B16: return op.is_signed ? binary<s16, s16, s16>(f) : binary<u16, u16, u16>(f);
    case RegClass::B32: return op.is_signed ? binary<s32, s32, s32>(f) : binary<u32, u32, u32>(f);
    case RegClass::B64: return op.is_signed ? binary<s64, s64, s64>(f) : binary<u64, u64, u64>(f);
    default: return nullptr;
  }
}

/// The same for operations that ignore signedness.
template <class F>
Handler bits_unary(F f, RegClass cls) {
  switch (cls) {
    case RegClass::B16: return unary<u16, u16>(f);
    case RegClass::B32: return unary<u32, u32>(f);
    case RegClass::B64: return unary<u64, u64>(f);
    default: return nullptr;
  }
}

template <class F>
Handler bits_binary(F f, RegClass cls) {
  switch (cls) {
    case RegClass::B16: return binary<u16, u16, u16>(f);
    case RegClass::B32: return binary<u32, u32, u32>(f);
    case RegClass::B64: return binary<u64, u64, u64>(f);
    default: return nullptr;
  }
}

constexpr auto identity = [](auto a) { return a; };

}  // namespace ptxemu
