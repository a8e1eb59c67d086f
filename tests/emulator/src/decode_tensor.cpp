// Decoding of matrix instructions.
#include <cstdlib>

#include "decoder.h"
#include "handlers.h"
#include "text.h"

namespace ptxemu {
namespace {

bool matrix_type(const std::string& name, MatrixType& out) {
  static const std::map<std::string, MatrixType> types = {
      {"f16", MatrixType::F16}, {"bf16", MatrixType::BF16}, {"tf32", MatrixType::TF32}, {"e4m3", MatrixType::E4M3},
      {"e5m2", MatrixType::E5M2}, {"s8", MatrixType::S8}, {"u8", MatrixType::U8}};
  const auto found = types.find(name);
  if (found == types.end()) return false;
  out = found->second;
  return true;
}

bool accumulator_type(const std::string& name, AccumulatorType& out) {
  if (name == "f32") out = AccumulatorType::F32;
  else if (name == "f16") out = AccumulatorType::F16;
  else if (name == "s32") out = AccumulatorType::S32;
  else return false;
  return true;
}

int bytes_of(MatrixType type) {
  return type == MatrixType::TF32 ? 4 : type == MatrixType::F16 || type == MatrixType::BF16 ? 2 : 1;
}

}  // namespace

bool Decoder::decode_matrix(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (op.is("ldmatrix") || op.is("stmatrix")) {
    const bool is_load = op.is("ldmatrix");
    if (!op.has("m8n8") || op.type != "b16") reject(op);
    op.accept({"sync", "aligned", "shared", "shared::cta", "x1"});
    inst.matrix_count = op.has("x4") ? 4 : op.has("x2") ? 2 : 1;
    inst.transposed = op.has("trans");
    inst.address = address(operands.at(is_load ? 1 : 0)).address;
    if (push_vector(inst, operands.at(is_load ? 0 : 1), RegClass::B32) != inst.matrix_count)
      throw EmulatorError("wrong number of registers");
    inst.definitions = is_load ? inst.matrix_count : 0;
    inst.has_side_effect = !is_load;
    inst.taint = Taint::Own;
    inst.counter = is_load ? CounterClass::SharedLoad : CounterClass::SharedStore;
    inst.handler = is_load ? exec_ldmatrix : exec_stmatrix;
    return true;
  }
  if (op.is("movmatrix")) {
    if (!op.has("m8n8") || !op.has("trans") || op.type != "b16") reject(op);
    op.accept({"sync", "aligned"});
    push(inst, operands.at(0), RegClass::B32);
    push(inst, operands.at(1), RegClass::B32);
    inst.taint = Taint::Own;
    inst.counter = CounterClass::Collective;
    inst.handler = exec_movmatrix;
    return true;
  }
  if (!op.is("mma")) return false;

  // mma.sync.aligned.m16n8k16.row.col.satfinite.f32.bf16.bf16.f32
  op.accept({"sync", "aligned"});
  const std::string shape = op.part(3);
  const size_t parts = op.parts.size();
  if (!starts_with(shape, "m16n8k") || !op.has("row") || !op.has("col") || parts < 10) reject(op);
  inst.saturate = op.has("satfinite");
  inst.shape_k = atoi(shape.c_str() + strlen("m16n8k"));
  AccumulatorType c_type;
  if (!accumulator_type(op.part(parts - 4), inst.accumulator) || !matrix_type(op.part(parts - 3), inst.a_type) ||
      !matrix_type(op.part(parts - 2), inst.b_type) || !accumulator_type(op.type, c_type) ||
      c_type != inst.accumulator)
    reject(op);
  const int bytes = bytes_of(inst.a_type), k_bytes = inst.shape_k * bytes;
  if (bytes_of(inst.b_type) != bytes || (k_bytes != 16 && k_bytes != 32)) reject(op);
  const int c_count = inst.accumulator == AccumulatorType::F16 ? 2 : 4;
  int counts[4];
  for (int k = 0; k < 4; k++) counts[k] = push_vector(inst, operands.at(k), RegClass::B32, k == 0 || k == 3);
  inst.a_begin = counts[0];
  inst.b_begin = inst.a_begin + counts[1];
  inst.c_begin = inst.b_begin + counts[2];
  if (counts[0] != c_count || counts[3] != c_count || counts[1] != k_bytes / 8 || counts[2] != k_bytes / 16)
    throw EmulatorError("wrong number of registers");
  inst.definitions = c_count;
  inst.taint = Taint::Own;
  inst.counter = CounterClass::Matrix;
  inst.handler = exec_mma;
  return true;
}

bool Decoder::decode_wgmma(Instruction& inst, const Opcode& op, const Operands& operands) {
  if (!op.is("wgmma")) return false;
  inst.taint = Taint::Own;
  inst.definitions = 0;
  inst.has_side_effect = true;
  inst.counter = CounterClass::Matrix;
  op.accept({"sync", "aligned"});
  if (op.has("fence")) {
    inst.counter = CounterClass::Fence;
    inst.handler = exec_wgmma_fence;
    return true;
  }
  if (op.has("commit_group")) {
    inst.counter = CounterClass::Async;
    inst.handler = exec_wgmma_commit;
    return true;
  }
  if (op.has("wait_group")) {
    inst.counter = CounterClass::Async;
    inst.immediate = integer_literal(operands.at(0));
    inst.handler = exec_wgmma_wait;
    return true;
  }
  // wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {d}, a, b, scale-d, imm-a, imm-b, tnspA, tnspB
  if (!op.has("mma_async")) reject(op);
  const std::string shape = op.part(4);
  if (!starts_with(shape, "m64n")) reject(op);
  inst.shape_n = atoi(shape.c_str() + strlen("m64n"));
  inst.shape_k = atoi(shape.c_str() + shape.find('k') + 1);
  if (!accumulator_type(op.part(5), inst.accumulator) || !matrix_type(op.part(6), inst.a_type) ||
      !matrix_type(op.part(7), inst.b_type))
    reject(op);
  inst.saturate = op.has("satfinite");
  const int bytes = bytes_of(inst.a_type);
  if (bytes_of(inst.b_type) != bytes || inst.shape_k * bytes != 32 || inst.shape_n % 8 || inst.shape_n > 256 ||
      inst.saturate)
    reject(op);
  inst.a_from_registers = operands.at(1)[0] == '{';
  const int d_count = push_vector(inst, operands[0], RegClass::B32, true);
  if (d_count != (inst.accumulator == AccumulatorType::F16 ? inst.shape_n / 4 : inst.shape_n / 2))
    throw EmulatorError("wrong number of accumulator registers");
  inst.definitions = d_count;
  inst.definitions_read = true;
  inst.a_begin = d_count;
  if (inst.a_from_registers) {
    if (push_vector(inst, operands[1], RegClass::B32) != 4) throw EmulatorError("wrong number of A registers");
  } else {
    push(inst, operands[1], RegClass::B64);
  }
  inst.b_begin = inst.operands.size();
  push(inst, operands.at(2), RegClass::B64);
  const std::string& scale_d = operands.at(3);
  if (isdigit((unsigned char)scale_d[0]))
    inst.scale_d = integer_literal(scale_d) ? kScaleDOne : kScaleDZero;
  else
    inst.scale_d = plain_predicate(scale_d);
  const bool has_scales = inst.accumulator != AccumulatorType::S32;
  size_t at = 4;
  if (has_scales) {
    inst.negate_a = s64(integer_literal(operands.at(at++))) < 0;
    inst.negate_b = s64(integer_literal(operands.at(at++))) < 0;
  }
  if (bytes == 2) {
    if (!inst.a_from_registers) inst.transpose_a = integer_literal(operands.at(at++)) != 0;
    inst.transpose_b = integer_literal(operands.at(at++)) != 0;
  }
  inst.handler = exec_wgmma;
  return true;
}

}  // namespace ptxemu
