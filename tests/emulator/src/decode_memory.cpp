// Decoding of control flow, loads and stores, atomics, warp collectives.
#include <cstdlib>

#include "decoder.h"
#include "handlers.h"
#include "text.h"

namespace ptxemu {

bool Decoder::decode_control(Instruction& inst, const Opcode& op, const Operands& operands) {
  inst.counter = CounterClass::Control;
  inst.definitions = 0;
  inst.taint = Taint::Own;
  const auto finish = [&](Handler handler) {
    inst.handler = handler;
    return true;
  };
  if (op.is("bra")) {
    op.accept({"uni"});
    inst.is_branch = true;
    branches_.push_back({int(program_.code.size()), scope_, operands.at(0)});
    return finish(exec_branch);
  }
  if (op.is("ret") && call_stack_.size() > 1) {
    op.accept({"uni"});
    inst.is_branch = true;
    branches_.push_back({int(program_.code.size()), return_scope_, return_label_});
    return finish(exec_branch);
  }
  if (op.is("ret") || op.is("exit")) {
    op.accept({"uni"});
    inst.is_exit = true;
    return finish(exec_exit);
  }
  if (op.is("trap") || op.is("brkpt")) {
    inst.has_side_effect = true;
    return finish(exec_trap);
  }
  if (op.is("nanosleep")) {
    op.accept({"u32"});
    return finish(exec_yield);
  }
  if (op.is("setmaxnreg")) {
    op.accept({"inc", "dec", "sync", "aligned", "u32"});
    inst.immediate = integer_literal(operands.at(0));
    return finish(exec_set_registers);
  }
  // Hints: they move no data that a program could see.
  if (op.is("prefetch") || op.is("prefetchu") || op.is("discard") || op.is("applypriority")) {
    op.accept_all();
    return finish(exec_nop);
  }
  if (op.is("griddepcontrol")) {  // launches are serialised: the grid before has ended
    op.accept({"wait", "launch_dependents"});
    return finish(exec_nop);
  }
  if (op.is("createpolicy")) {
    op.accept_all();
    push(inst, operands.at(0), RegClass::B64);
    inst.definitions = 1;
    inst.taint = Taint::Propagate;
    inst.handler = [](Warp& warp, const Instruction& i) {
      FOR_ACTIVE_LANES (warp, lane) lanes<u64>(warp, i.operands[0])[lane] = 0;
    };
    return true;
  }
  inst.counter = CounterClass::Integer;
  inst.definitions = 1;
  inst.taint = Taint::Propagate;
  return false;
}

static Space space_of(const Opcode& op) {
  for (const char* name : {"global", "const"})
    if (op.has(name)) return Space::Global;
  if (op.has("shared::cluster")) return Space::SharedCluster;
  for (const char* name : {"shared", "shared::cta"})
    if (op.has(name)) return Space::Shared;
  for (const char* name : {"param", "param::entry", "param::func"})
    if (op.has(name)) return Space::Param;
  if (op.has("local")) return Space::Local;
  return Space::Generic;
}

/// Memory order and scope. An order of CTA scope orders nothing towards other CTAs.
static Ordering ordering_of(const Opcode& op) {
  Ordering order = Ordering::Weak;
  if (op.has("relaxed") || op.has("volatile") || op.has("mmio")) order = Ordering::Relaxed;
  if (op.has("acquire")) order = Ordering::Acquire;
  if (op.has("release")) order = Ordering::Release;
  if (op.has("acq_rel")) order = Ordering::AcquireRelease;
  op.accept({"weak", "cluster", "gpu", "sys"});
  if (op.has("cta") && order != Ordering::Weak) order = Ordering::Relaxed;
  return order;
}

static void accept_cache_hints(const Opcode& op) {
  op.accept({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified", "L1::evict_normal", "L1::evict_unchanged",
             "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::evict_first", "L2::evict_last",
             "L2::evict_normal", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"});
}

static bool scalar_type(const std::string& type, ScalarType& out) {
  static const std::map<std::string, ScalarType> types = {
      {"b8", ScalarType::B8}, {"u8", ScalarType::B8}, {"s8", ScalarType::B8}, {"b16", ScalarType::B16},
      {"u16", ScalarType::B16}, {"s16", ScalarType::B16}, {"b32", ScalarType::B32}, {"u32", ScalarType::U32},
      {"s32", ScalarType::S32}, {"b64", ScalarType::B64}, {"u64", ScalarType::U64}, {"s64", ScalarType::S64},
      {"f32", ScalarType::F32}, {"f64", ScalarType::F64}, {"f16", ScalarType::F16}, {"f16x2", ScalarType::F16x2},
      {"bf16", ScalarType::BF16}, {"bf16x2", ScalarType::BF16x2}, {"b128", ScalarType::B128}};
  const auto found = types.find(type);
  if (found == types.end()) return false;
  out = found->second;
  return true;
}

bool Decoder::decode_memory(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("ld") && !op.is("st") && !op.is("ldu")) return false;
  if (op.is("st") && op.has("async")) {  // st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32
    op.accept({"weak", "shared::cluster", "mbarrier::complete_tx::bytes"});
    inst.vector_length = op.has("v2") ? 2 : op.has("v4") ? 4 : 1;
    inst.element_bytes = type_bytes(op.type);
    inst.definitions = 0;
    inst.taint = Taint::Own;
    inst.has_side_effect = true;
    inst.is_store = true;
    inst.address = address(operands.at(0)).address;
    push_vector(inst, operands.at(1), op.cls);
    inst.address2 = address(operands.at(2)).address;
    inst.counter = CounterClass::Async;
    inst.handler = exec_store_async;
    return true;
  }
  if (!scalar_type(op.type, inst.type)) reject(op);
  inst.is_store = op.is("st");
  inst.space = space_of(op);
  inst.ordering = ordering_of(op);
  accept_cache_hints(op);
  inst.element_bytes = type_bytes(op.type);
  inst.vector_length = op.has("v2") ? 2 : op.has("v4") ? 4 : op.has("v8") ? 8 : 1;
  inst.sign_extend = op.is_signed;
  const AddressText where = address(operands.at(inst.is_store ? 0 : 1));
  inst.address = where.address;
  // Parameters of an inlined function live in local memory.
  if (inst.space == Space::Param && where.space == Space::Local) inst.space = Space::Local;
  push_vector(inst, operands.at(inst.is_store ? 1 : 0), op.cls, op.is_float);
  if (int(inst.operands.size()) != inst.vector_length) throw EmulatorError("wrong vector length");
  inst.definitions = inst.is_store ? 0 : inst.vector_length;
  inst.has_side_effect = inst.is_store;
  inst.taint = Taint::Own;
  switch (inst.space) {
    case Space::Shared:
    case Space::SharedCluster:
      inst.counter = inst.is_store ? CounterClass::SharedStore : CounterClass::SharedLoad;
      break;
    case Space::Local: inst.counter = CounterClass::LocalAccess; break;
    case Space::Param: inst.counter = CounterClass::ParamLoad; break;
    default: inst.counter = inst.is_store ? CounterClass::GlobalStore : CounterClass::GlobalLoad;
  }
  inst.handler = exec_load_store;
  return true;
}

bool Decoder::decode_atomic(Instruction& inst, const Opcode& op, const Operands& operands) {
  if ((!op.is("atom") && !op.is("red")) || op.has("async")) return false;
  static const std::pair<const char*, AtomicOp> names[] = {
      {"add", AtomicOp::Add}, {"min", AtomicOp::Min}, {"max", AtomicOp::Max}, {"and", AtomicOp::And},
      {"or", AtomicOp::Or}, {"xor", AtomicOp::Xor}, {"exch", AtomicOp::Exchange},
      {"cas", AtomicOp::CompareAndSwap}, {"inc", AtomicOp::Increment}, {"dec", AtomicOp::Decrement}};
  bool found = false;
  for (const auto& [name, value] : names)
    if (op.has(name)) {
      inst.atomic = value;
      found = true;
    }
  if (!found || !scalar_type(op.type, inst.type)) reject(op);
  inst.space = space_of(op);
  inst.ordering = ordering_of(op);
  if (inst.ordering == Ordering::Weak) inst.ordering = Ordering::Relaxed;
  accept_cache_hints(op);
  op.accept({"cta", "noftz"});
  inst.element_bytes = type_bytes(op.type);
  inst.vector_length = op.has("v2") ? 2 : op.has("v4") ? 4 : op.has("v8") ? 8 : 1;
  if (inst.element_bytes == 16) reject(op);
  const bool has_result = op.is("atom");
  size_t k = 0;
  if (has_result) {
    if (operands.at(0) == "_")
      inst.operands.push_back(-1);
    else
      push_vector(inst, operands[0], op.cls, op.is_float);
    if (operands[0] == "_") inst.classes.push_back(op.cls);
    k = 1;
  }
  inst.definitions = inst.operands.size();
  inst.address = address(operands.at(k)).address;
  const int values = inst.atomic == AtomicOp::CompareAndSwap ? 2 : 1;
  for (int v = 0; v < values; v++) push_vector(inst, operands.at(++k), op.cls, op.is_float);
  inst.taint = Taint::Own;
  inst.has_side_effect = true;
  inst.counter = CounterClass::Atomic;
  inst.handler = exec_atomic;
  return true;
}

bool Decoder::decode_collective(Instruction& inst, const Opcode& op, const Operands& operands) {
  inst.taint = Taint::Own;
  inst.counter = CounterClass::Collective;
  const auto pushed = [&](const std::string& text, RegClass cls) { inst.operands.push_back(operand(text, cls).id); };
  if (op.is("shfl")) {
    op.accept({"sync"});
    inst.shuffle = op.has("bfly")  ? ShuffleMode::Butterfly
                   : op.has("idx") ? ShuffleMode::Index
                   : op.has("up")  ? ShuffleMode::Up
                                   : ShuffleMode::Down;
    op.accept({"down"});
    const auto [destination, in_range] = split_at_bar(operands.at(0));
    if (!in_range.empty()) inst.predicate_out = operand(in_range, RegClass::Pred).id;
    pushed(destination, RegClass::B32);
    for (int k = 1; k < 5; k++) pushed(operands.at(k), RegClass::B32);
    inst.handler = exec_shuffle;
  } else if (op.is("elect")) {
    const auto [destination, is_leader] = split_at_bar(operands.at(0));
    inst.predicate_out = operand(is_leader, RegClass::Pred).id;
    inst.operands = {destination == "_" ? -1 : operand(destination, RegClass::B32).id};
    pushed(operands.at(1), RegClass::B32);
    inst.handler = exec_elect;
  } else if (op.is("vote")) {
    op.accept({"sync"});
    const bool ballot = op.has("ballot");
    inst.vote = ballot          ? VoteMode::Ballot
                : op.has("all") ? VoteMode::All
                : op.has("any") ? VoteMode::Any
                                : VoteMode::Uni;
    op.accept({"uni"});
    pushed(operands.at(0), ballot ? RegClass::B32 : RegClass::Pred);
    inst.operands.push_back(predicate_operand(operands.at(1), inst.predicate_negated));
    pushed(operands.at(2), RegClass::B32);
    inst.handler = exec_vote;
  } else if (op.is("match")) {
    op.accept({"sync", "any"});
    inst.wait_all = op.has("all");
    inst.value64 = op.cls == RegClass::B64;
    const auto [destination, all_equal] = split_at_bar(operands.at(0));
    if (!all_equal.empty()) inst.predicate_out = operand(all_equal, RegClass::Pred).id;
    pushed(destination, RegClass::B32);
    pushed(operands.at(1), op.cls);
    pushed(operands.at(2), RegClass::B32);
    inst.handler = exec_match;
  } else if (op.is("redux")) {
    op.accept({"sync"});
    static const std::pair<const char*, AtomicOp> names[] = {
        {"add", AtomicOp::Add}, {"min", AtomicOp::Min}, {"max", AtomicOp::Max},
        {"and", AtomicOp::And}, {"or", AtomicOp::Or}, {"xor", AtomicOp::Xor}};
    bool found = false;
    for (const auto& [name, value] : names)
      if (op.has(name)) {
        inst.atomic = value;
        found = true;
      }
    if (!found || op.is_float) reject(op);
    inst.type = op.is_signed ? ScalarType::S32 : ScalarType::U32;
    for (int k = 0; k < 3; k++) pushed(operands.at(k), RegClass::B32);
    inst.handler = exec_redux;
  } else if (op.is("activemask")) {
    pushed(operands.at(0), RegClass::B32);
    inst.taint = Taint::Propagate;
    inst.handler = exec_active_mask;
  } else if (op.is("mapa")) {
    op.accept({"shared::cluster"});
    inst.value64 = op.cls == RegClass::B64;
    pushed(operands.at(0), op.cls);
    pushed(operands.at(1), op.cls);
    pushed(operands.at(2), RegClass::B32);
    inst.taint = Taint::Propagate;
    inst.handler = exec_mapa;
  } else if (op.is("getctarank")) {
    op.accept({"shared::cluster"});
    inst.value64 = op.cls == RegClass::B64;
    pushed(operands.at(0), RegClass::B32);
    pushed(operands.at(1), op.cls);
    inst.taint = Taint::Propagate;
    inst.handler = exec_cta_rank;
  } else if (op.is("isspacep")) {
    pushed(operands.at(0), RegClass::Pred);
    pushed(operands.at(1), RegClass::B64);
    op.accept_all();
    const std::string space = op.type;
    inst.space = space == "global"              ? Space::Global
                 : space == "shared::cluster"   ? Space::SharedCluster
                 : starts_with(space, "shared") ? Space::Shared
                 : space == "local"             ? Space::Local
                                                : Space::Param;
    inst.taint = Taint::Propagate;
    inst.handler = exec_is_space;
  } else {
    inst.taint = Taint::Propagate;
    inst.counter = CounterClass::Integer;
    return false;
  }
  return true;
}

}  // namespace ptxemu
