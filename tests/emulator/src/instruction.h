// A decoded instruction: a handler, its operands and its modifiers.
#pragma once
#include <vector>

#include "types.h"

namespace ptxemu {

// ---------------------------------------------------------------- register file
//
// While a kernel is being decoded an operand is the number of a virtual register. Slot allocation
// (registers.cpp) replaces it by the byte offset of a slot in the register file of a warp. A slot
// holds 32 lanes (structure of arrays), so that a scalar handler is one loop the compiler vectorises.
// Literals and special registers are slots too, filled when a warp starts: a handler never asks
// what kind of operand it has. Predicates are 32-bit masks, one bit a lane.

enum class RegClass : u8 { Pred, B16, B32, B64, B128 };

/// Bytes of a slot; a multiple of 64, because the undefined-lanes mask of a slot is found by
/// offset / 64.
inline int slot_bytes(RegClass cls) {
  switch (cls) {
    case RegClass::Pred:
    case RegClass::B16: return 64;
    case RegClass::B32: return 128;
    case RegClass::B64: return 256;
    default: return 512;
  }
}

struct Register {
  int id;
  RegClass cls;
};

/// [base + offset] of each lane; base < 0 is an absolute address.
struct Address {
  int base = -1;
  bool is64 = false;
  s64 offset = 0;
};

// ---------------------------------------------------------------- modifiers

enum class Space : u8 { Generic, Global, Shared, SharedCluster, Param, Local };
enum class Combine : u8 { None, And, Or, Xor };  // boolean operator of setp
enum class ShuffleMode : u8 { Butterfly, Index, Up, Down };
enum class VoteMode : u8 { Ballot, All, Any, Uni };
enum class AtomicOp : u8 { Add, Min, Max, And, Or, Xor, Exchange, CompareAndSwap, Increment, Decrement };
enum class ScalarType : u8 { B8, B16, B32, B64, U32, S32, U64, S64, F32, F64, F16, F16x2, BF16, BF16x2, B128 };
/// How a memory access takes part in the memory model.
enum class Ordering : u8 { Weak, Relaxed, Acquire, Release, AcquireRelease };
enum class MatrixType : u8 { F16, BF16, TF32, E4M3, E5M2, S8, U8 };
enum class AccumulatorType : u8 { F32, F16, S32 };
enum class TensorMapField : u8 {
  GlobalAddress,
  Rank,
  BoxDim,
  GlobalDim,
  GlobalStride,
  ElementStride,
  ElementType,
  InterleaveLayout,
  SwizzleMode,
  FillMode
};
/// What an async bulk operation does, and in which direction.
enum class BulkKind : u8 { GlobalToShared, SharedToGlobal, SharedToCluster, Prefetch };
enum class BulkCompletion : u8 { MBarrier, BulkGroup };

/// How undefined lanes ("poison") pass through an instruction.
enum class Taint : u8 {
  Propagate,  // destination lanes are undefined where any source is
  Select,     // selp: only the chosen source counts
  AndLogic,   // and.pred, setp.and: a defined false makes the result defined
  OrLogic,
  Bytes,      // prmt with a selector known from its text, in `immediate`: byte by byte
  Own,        // the handler sets it
};

/// Instruction classes of the counters.
enum class CounterClass : u8 {
  Integer, Float, Convert, Move, Predicate, Control, GlobalLoad, GlobalStore, SharedLoad, SharedStore,
  LocalAccess, ParamLoad, Atomic, Collective, Matrix, Async, Barrier, Fence, Count
};
inline const char* counter_name(int k) {
  static const char* const names[] = {"integer", "float", "convert", "move", "predicate", "control",
                                      "global_load", "global_store", "shared_load", "shared_store",
                                      "local", "param_load", "atomic", "collective", "matrix", "async",
                                      "barrier", "fence"};
  return names[k];
}

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&);

constexpr int kScaleDZero = -1;  // values of Instruction::scale_d that are not a predicate
constexpr int kScaleDOne = -2;

struct SourceLocation {
  int file = -1;  // index into ModuleText::files
  int line = 0;
  int inlined_at = -1;  // index of the location this one was inlined into
};

struct Instruction {
  Handler handler = nullptr;
  int guard = -1;  // guard predicate, -1: none
  bool guard_negated = false;
  bool is_branch = false;
  bool is_exit = false;
  bool has_side_effect = false;  // a guard that is undefined is an error here
  bool touches_memory = false;   // a barrier before or after it may be needed
  Taint taint = Taint::Propagate;
  CounterClass counter = CounterClass::Integer;
  int branch_target = -1;

  std::vector<int> operands;  // destinations first; -1 where an optional operand is absent
  u8 definitions = 1;         // how many leading operands are written
  bool definitions_read = false;  // they are read as well (wgmma)
  std::vector<RegClass> classes;  // parallel to operands where a handler needs them
  std::vector<int> coordinates;   // of a tensor copy
  Address address;                // the memory operand
  Address address2;               // second one: source of a copy, its mbarrier
  s64 immediate = 0;              // N of a wait_group, table of lop3, value of tensormap.replace

  // Modifiers; a handler reads its own.
  Space space = Space::Generic;
  Space space2 = Space::Generic;
  int element_bytes = 0;
  int vector_length = 1;
  bool is_store = false;
  bool sign_extend = false;
  Ordering ordering = Ordering::Weak;
  Combine combine = Combine::None;
  bool predicate_negated = false;  // "!p" as the input predicate of setp or vote
  int predicate_out = -1;          // second destination of setp, shfl, match; destination of elect
  ShuffleMode shuffle = ShuffleMode::Index;
  VoteMode vote = VoteMode::Ballot;
  AtomicOp atomic = AtomicOp::Add;
  ScalarType type = ScalarType::B32;
  bool transposed = false;  // ldmatrix, stmatrix
  int matrix_count = 1;     // ldmatrix, stmatrix
  MatrixType a_type = MatrixType::F16, b_type = MatrixType::F16;
  AccumulatorType accumulator = AccumulatorType::F32;
  bool saturate = false;
  int shape_n = 0, shape_k = 0;
  bool a_from_registers = false;
  bool transpose_a = false, transpose_b = false;  // wgmma operand is MN-major in shared memory
  bool negate_a = false, negate_b = false;
  int scale_d = kScaleDOne;
  int a_begin = 0, b_begin = 0, c_begin = 0;  // where matrix fragments start in operands
  int copy_bytes = 0;
  int ignore_source = -1;
  bool wait_all = false;
  bool wait_read = false;      // cp.async.bulk.wait_group.read
  bool no_increment = false;   // cp.async.mbarrier.arrive.noinc
  bool arrive_only = false;
  bool aligned = false;
  bool expect_tx = false;
  bool without_arrive = false;  // mbarrier.expect_tx, complete_tx
  bool drop = false;            // mbarrier.arrive_drop
  bool parity = false;          // mbarrier wait by parity (else by state)
  bool multicast = false;
  bool reduces = false;         // cp.reduce.async.bulk
  BulkKind bulk = BulkKind::GlobalToShared;
  BulkCompletion completion = BulkCompletion::MBarrier;
  TensorMapField field = TensorMapField::GlobalAddress;
  int ordinal = 0;
  bool value64 = false;
  bool releases_async = false;    // fence.proxy.async and its kin
  bool releases_mbarrier = false; // fence.mbarrier_init

  // Registers of wgmma that this (other) instruction touches: numbers of in-flight slots.
  std::vector<u16> wgmma_registers;

  const char* text = nullptr;  // the PTX statement, for messages
  int ptx_line = 0;
  int location = -1;  // index into Program::locations
  u64 executed = 0;   // how often a warp ran it
  mutable u64 idle = 0;  // how often of these it had nothing to do: no copy to wait for, nothing to order
};

/// Calls visit(reference, is_definition, is_use) for every register reference of an instruction.
template <class F>
void for_each_register(Instruction& inst, F visit) {
  if (inst.guard >= 0) visit(inst.guard, false, true);
  for (size_t k = 0; k < inst.operands.size(); k++) {
    if (inst.operands[k] < 0) continue;
    const bool defined = k < inst.definitions;
    visit(inst.operands[k], defined, !defined || inst.definitions_read);
  }
  for (int& coordinate : inst.coordinates) visit(coordinate, false, true);
  if (inst.address.base >= 0) visit(inst.address.base, false, true);
  if (inst.address2.base >= 0) visit(inst.address2.base, false, true);
  if (inst.predicate_out >= 0) visit(inst.predicate_out, true, false);
  if (inst.ignore_source >= 0) visit(inst.ignore_source, false, true);
  if (inst.scale_d >= 0) visit(inst.scale_d, false, true);
}

}  // namespace ptxemu
