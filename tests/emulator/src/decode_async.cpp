// Decoding of asynchronous copies, tensor maps, barriers and fences.
#include <cstdlib>

#include "decoder.h"
#include "handlers.h"
#include "text.h"

namespace ptxemu {

// ---------------------------------------------------------------- cp.async and cp.async.bulk

static bool reduction_op(const Opcode& op, AtomicOp& out) {
  static const std::pair<const char*, AtomicOp> names[] = {
      {"add", AtomicOp::Add}, {"min", AtomicOp::Min}, {"max", AtomicOp::Max}, {"and", AtomicOp::And},
      {"or", AtomicOp::Or}, {"xor", AtomicOp::Xor}, {"inc", AtomicOp::Increment}, {"dec", AtomicOp::Decrement}};
  for (const auto& [name, value] : names)
    if (op.has(name)) {
      out = value;
      return true;
    }
  return false;
}

bool Decoder::decode_copy(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("cp")) return false;
  inst.taint = Taint::Own;
  inst.definitions = 0;
  inst.has_side_effect = true;
  inst.counter = CounterClass::Async;
  const auto is = [&](const char* text) { return op.full == text; };
  if (is("cp.async.commit_group") || is("cp.async.wait_all") || starts_with(op.full, "cp.async.wait_group")) {
    op.accept_all();
    inst.wait_all = is("cp.async.wait_all");
    if (starts_with(op.full, "cp.async.wait_group")) inst.immediate = integer_literal(operands.at(0));
    inst.handler = is("cp.async.commit_group") ? exec_cp_async_commit : exec_cp_async_wait;
    return true;
  }
  if (is("cp.async.bulk.commit_group") || starts_with(op.full, "cp.async.bulk.wait_group")) {
    inst.wait_read = op.has("read");
    op.accept_all();
    if (!is("cp.async.bulk.commit_group")) inst.immediate = integer_literal(operands.at(0));
    inst.handler = is("cp.async.bulk.commit_group") ? exec_bulk_commit : exec_bulk_wait;
    return true;
  }
  if (starts_with(op.full, "cp.async.mbarrier.arrive")) {
    op.accept({"async", "mbarrier", "arrive", "shared", "shared::cta"});
    inst.address = address(operands.at(0)).address;
    inst.no_increment = op.has("noinc");
    inst.handler = exec_cp_async_mbarrier_arrive;
    return true;
  }
  inst.reduces = op.has("reduce");
  if (!op.has("async")) return false;
  if (!op.has("bulk")) {  // cp.async.cg.shared.global.L2::128B [dst], [src], 16, src-size
    if (inst.reduces || !(op.has("ca") || op.has("cg"))) reject(op);
    op.accept({"shared", "shared::cta", "global", "L2::64B", "L2::128B", "L2::256B"});
    const size_t count = operands.size() - (op.has("L2::cache_hint") ? 1 : 0);
    inst.address = address(operands.at(0)).address;
    inst.address2 = address(operands.at(1)).address;
    inst.copy_bytes = integer_literal(operands.at(2));
    if (inst.copy_bytes != 4 && inst.copy_bytes != 8 && inst.copy_bytes != 16) reject(op);
    inst.operands.push_back(-1);
    if (count > 3) {  // src-size, or the ignore-src predicate
      const Register* found = find_register(operands[3]);
      if (found && found->cls == RegClass::Pred)
        inst.ignore_source = found->id;
      else
        inst.operands[0] = operand(operands[3], RegClass::B32).id;
    }
    inst.handler = exec_cp_async;
    return true;
  }

  // cp[.reduce].async.bulk[.prefetch][.tensor.Nd].<dst>.<src>...
  const bool prefetch = op.has("prefetch"), tensor = op.has("tensor"), multicast = op.has("multicast::cluster");
  const bool hint = op.has("L2::cache_hint");
  op.accept({"bulk", "bulk_group", "mbarrier::complete_tx::bytes", "tile", "1d", "2d", "3d", "4d", "5d", "relaxed",
             "gpu", "cta", "cluster", "L2", "noftz", "cta_group::1"});
  const size_t global = [&] {
    for (size_t k = 0; k < op.parts.size(); k++)
      if (op.parts[k] == "global") return k;
    return op.parts.size();
  }();
  const auto position = [&](const char* name) {
    for (size_t k = 0; k < op.parts.size(); k++)
      if (op.parts[k] == name) return k;
    return op.parts.size();
  };
  const size_t cluster = position("shared::cluster"), cta = position("shared::cta"), none = op.parts.size();
  op.accept({"global", "shared::cluster", "shared::cta"});
  const size_t shared = std::min(cluster, cta);
  if (prefetch)
    inst.bulk = BulkKind::Prefetch;
  else if (global != none && shared < global)
    inst.bulk = BulkKind::GlobalToShared;
  else if (global != none)
    inst.bulk = BulkKind::SharedToGlobal;
  else if (cluster < cta)
    inst.bulk = BulkKind::SharedToCluster;
  else
    reject(op);
  if (inst.reduces && !reduction_op(op, inst.atomic)) reject(op);
  if (inst.reduces && inst.bulk == BulkKind::SharedToCluster) reject(op);
  inst.multicast = multicast;
  const bool load = inst.bulk == BulkKind::GlobalToShared || inst.bulk == BulkKind::SharedToCluster;
  const size_t expected = (tensor ? 2u : 3u) - (prefetch ? 1u : 0u) + (load ? 1u : 0u) + multicast + hint;
  if (operands.size() != expected) throw EmulatorError("wrong number of operands");

  if (tensor) {
    const size_t map_at = load ? 1 : 0;
    const auto inner = bracket_elements(operands.at(map_at));
    inst.operands.push_back(operand(inner.at(0), RegClass::B64).id);
    for (const std::string& element : vector_elements(inner.at(1)))
      inst.coordinates.push_back(operand(element, RegClass::B32).id);
    if (!prefetch) inst.address = address(operands.at(load ? 0 : 1)).address;
    if (load) inst.address2 = address(operands.at(2)).address;
    if (multicast) inst.operands.push_back(operand(operands.at(3), RegClass::B16).id);
    inst.handler = exec_tensor_copy;
    return true;
  }
  // operands: the side that is not in `address`, the multicast mask, the size.
  static const std::map<std::string, ScalarType> types = {
      {"u32", ScalarType::U32}, {"s32", ScalarType::S32}, {"u64", ScalarType::U64}, {"s64", ScalarType::S64},
      {"b32", ScalarType::B32}, {"b64", ScalarType::B64}, {"f16", ScalarType::F16}, {"bf16", ScalarType::BF16},
      {"f32", ScalarType::F32}, {"f64", ScalarType::F64}};
  if (inst.reduces) {
    const auto found = types.find(op.type);
    if (found == types.end()) reject(op);
    inst.type = found->second;
    inst.element_bytes = type_bytes(op.type);
  }
  const auto pointer_register = [&](const std::string& text) {
    const AddressText where = address(text);
    if (where.address.base < 0 || where.address.offset) throw EmulatorError("bulk copy needs a plain register address");
    inst.value64 = where.address.is64;
    return where.address.base;
  };
  if (prefetch) {
    inst.operands = {pointer_register(operands.at(0)), -1, operand(operands.at(1), RegClass::B32).id};
  } else if (load) {
    inst.address = address(operands.at(0)).address;
    inst.operands = {pointer_register(operands.at(1)), -1, operand(operands.at(2), RegClass::B32).id};
    inst.address2 = address(operands.at(3)).address;
    if (multicast) inst.operands[1] = operand(operands.at(4), RegClass::B16).id;
  } else {
    inst.operands = {pointer_register(operands.at(0)), -1, operand(operands.at(2), RegClass::B32).id};
    inst.address = address(operands.at(1)).address;
  }
  inst.handler = exec_bulk_copy;
  return true;
}

bool Decoder::decode_tensormap(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("tensormap")) return false;
  static const std::pair<const char*, TensorMapField> fields[] = {
      {"global_address", TensorMapField::GlobalAddress}, {"rank", TensorMapField::Rank},
      {"box_dim", TensorMapField::BoxDim}, {"global_dim", TensorMapField::GlobalDim},
      {"global_stride", TensorMapField::GlobalStride}, {"element_stride", TensorMapField::ElementStride},
      {"elemtype", TensorMapField::ElementType}, {"interleave_layout", TensorMapField::InterleaveLayout},
      {"swizzle_mode", TensorMapField::SwizzleMode}, {"fill_mode", TensorMapField::FillMode}};
  inst.taint = Taint::Own;
  inst.definitions = 0;
  inst.has_side_effect = true;
  inst.counter = CounterClass::Async;
  if (op.part(1) == "cp_fenceproxy") {
    op.accept_all();
    inst.address = address(operands.at(0)).address;
    inst.address2 = address(operands.at(1)).address;
    inst.handler = exec_tensormap_copy;
    return true;
  }
  if (op.part(1) != "replace" || !op.has("tile")) reject(op);
  bool found = false;
  for (const auto& [name, field] : fields)
    if (op.has(name)) {
      inst.field = field;
      found = true;
    }
  if (!found) reject(op);
  inst.space = op.has("global") ? Space::Global : op.has("shared::cta") ? Space::Shared : Space::Generic;
  op.accept({"b1024"});
  inst.address = address(operands.at(0)).address;
  size_t value_at = 1;
  if (operands.size() == 3) {
    inst.ordinal = integer_literal(operands[1]);
    value_at = 2;
  }
  const std::string& value = operands.at(value_at);
  if (isdigit((unsigned char)value[0])) {
    inst.immediate = integer_literal(value);
  } else {
    const Register reg = operand(value, op.cls);
    inst.value64 = reg.cls == RegClass::B64;
    inst.operands.push_back(reg.id);
  }
  inst.handler = exec_tensormap_replace;
  return true;
}

// ---------------------------------------------------------------- barriers

bool Decoder::decode_barrier(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("bar") && !op.is("barrier")) return false;
  inst.taint = Taint::Own;
  inst.definitions = 0;
  inst.has_side_effect = true;
  inst.counter = CounterClass::Barrier;
  op.accept({"sync", "aligned", "cta"});
  if (op.has("warp")) {
    inst.operands = {operand(operands.at(0), RegClass::B32).id};
    inst.handler = exec_warp_sync;
    return true;
  }
  if (op.has("cluster")) {
    if (op.has("relaxed")) inst.ordering = Ordering::Relaxed;
    op.accept({"release", "acquire"});
    inst.handler = op.has("arrive") ? exec_cluster_arrive : exec_cluster_wait;
    op.accept({"wait"});
    return true;
  }
  // bar.red.popc.u32 d, a, b, p; bar.sync a, b; bar.arrive a, b
  const bool reduces = op.has("red");
  inst.arrive_only = op.has("arrive");
  inst.operands = {-1, -1, -1, -1};
  size_t at = 0;
  if (reduces) {
    inst.atomic = op.has("popc") ? AtomicOp::Add : op.has("and") ? AtomicOp::And : AtomicOp::Or;
    op.accept({"or"});
    inst.operands[0] = operand(operands.at(at++), inst.atomic == AtomicOp::Add ? RegClass::B32 : RegClass::Pred).id;
    inst.definitions = 1;
  }
  inst.operands[1] = operand(operands.at(at++), RegClass::B32).id;
  const size_t left = operands.size() - at - (reduces ? 1 : 0);
  if (left) inst.operands[2] = operand(operands.at(at++), RegClass::B32).id;
  if (reduces) inst.operands[3] = predicate_operand(operands.at(at), inst.predicate_negated);
  if (inst.arrive_only && inst.operands[2] < 0) throw EmulatorError("bar.arrive needs a thread count");
  inst.handler = exec_barrier;
  return true;
}

bool Decoder::decode_mbarrier(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("mbarrier")) return false;
  inst.taint = Taint::Own;
  inst.definitions = 0;
  inst.has_side_effect = true;
  inst.counter = CounterClass::Barrier;
  op.accept({"shared", "shared::cta", "shared::cluster", "release", "acquire", "cta", "cluster", "b64", "noComplete"});
  if (op.has("relaxed")) inst.ordering = Ordering::Relaxed;
  const std::string kind = op.part(1);
  if (kind == "init") {
    inst.address = address(operands.at(0)).address;
    inst.operands = {operand(operands.at(1), RegClass::B32).id};
    inst.handler = exec_mbarrier_init;
  } else if (kind == "inval") {
    inst.address = address(operands.at(0)).address;
    inst.handler = exec_mbarrier_inval;
  } else if (kind == "arrive" || kind == "arrive_drop" || kind == "expect_tx" || kind == "complete_tx") {
    inst.drop = kind == "arrive_drop";
    inst.without_arrive = kind == "expect_tx" || kind == "complete_tx";
    inst.arrive_only = kind == "complete_tx";  // the bytes count down
    inst.expect_tx = op.has("expect_tx") || inst.without_arrive;
    const bool state = operands.at(0)[0] != '[';
    inst.operands = {-1, -1, -1};
    if (state && operands[0] != "_") {
      inst.operands[0] = operand(operands[0], RegClass::B64).id;
      inst.definitions = 1;
    }
    const size_t at = state ? 1 : 0;
    inst.address = address(operands.at(at)).address;
    if (operands.size() > at + 1)
      inst.operands[inst.expect_tx ? 1 : 2] = operand(operands[at + 1], RegClass::B32).id;
    inst.handler = exec_mbarrier_arrive;
  } else if (kind == "try_wait" || kind == "test_wait") {
    inst.parity = op.has("parity");
    inst.address = address(operands.at(1)).address;
    inst.operands = {operand(operands.at(0), RegClass::Pred).id,
                     operand(operands.at(2), inst.parity ? RegClass::B32 : RegClass::B64).id};
    inst.definitions = 1;
    inst.handler = exec_mbarrier_wait;
  } else if (kind == "pending_count") {
    inst.operands = {operand(operands.at(0), RegClass::B32).id, operand(operands.at(1), RegClass::B64).id};
    inst.definitions = 1;
    inst.handler = exec_mbarrier_pending_count;
  } else {
    reject(op);
  }
  return true;
}

// ---------------------------------------------------------------- fences

bool Decoder::decode_fence(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("fence") && !op.is("membar")) return false;
  inst.taint = Taint::Own;
  inst.definitions = 0;
  inst.counter = CounterClass::Fence;
  if (op.is("membar")) {
    inst.handler = op.has("cta") ? exec_nop : exec_fence;
    op.accept({"gl", "sys"});
    return true;
  }
  if (op.has("mbarrier_init")) {
    op.accept({"release", "cluster"});
    inst.handler = exec_proxy_fence;
    return true;
  }
  if (op.has("proxy")) {
    if (op.has("async")) {
      inst.releases_async = true;
      op.accept({"global", "shared::cta", "shared::cluster"});
      inst.handler = exec_proxy_fence;
      return true;
    }
    if (op.has("tensormap::generic")) {
      op.accept({"cta", "cluster", "gpu", "sys", "release"});
      inst.handler = exec_nop;
      if (op.has("acquire")) {
        inst.address = address(operands.at(0)).address;
        inst.handler = exec_tensormap_acquire;
      }
      return true;
    }
    if (op.has("alias")) {
      inst.handler = exec_nop;
      return true;
    }
    reject(op);
  }
  op.accept({"sc", "acq_rel", "acquire", "release", "cluster", "gpu", "sys"});
  inst.handler = op.has("cta") ? exec_nop : exec_fence;
  return true;
}

}  // namespace ptxemu
