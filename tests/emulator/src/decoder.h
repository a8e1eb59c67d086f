// One kernel: PTX text to Program. Statements, scopes and calls are in decoder.cpp, operands in operands.cpp; turning
// an instruction into a handler and operands is spread over the decode_*.cpp files, a family each.
#pragma once
#include <map>
#include <unordered_map>

#include "machine.h"
#include "module_text.h"
#include "opcode.h"

namespace ptxemu {

[[noreturn]] void reject(const Opcode& op);
u64 integer_literal(const std::string& text);

class Decoder {
 public:
  using Operands = std::vector<std::string>;

  Decoder(ModuleText& module, Program& program) : module_(module), program_(program), scopes_(1) {}

  void decode(const std::string& kernel);

 private:
  struct Symbol {
    Space space;
    u64 address;
  };
  struct Scope {
    std::unordered_map<std::string, Register> registers;
    std::unordered_map<std::string, Symbol> symbols;
    std::unordered_map<std::string, int> labels;
    int parent = -1;
  };
  struct BranchFixup {
    int instruction;
    int scope;
    std::string label;
  };
  struct AddressText {
    Address address;
    Space space = Space::Generic;  // of the symbol, Generic if none
  };

  // ---- statements (decoder.cpp)
  void place_shared(const FunctionText& kernel);
  void collect_bodies(const FunctionText& function, std::vector<const FunctionText*>& found);
  void parse_directives(const std::string& directives);
  void parse_parameters(const std::string& parameters);
  void parse_body(size_t begin, size_t end);
  void parse_statement(const std::string& statement, size_t position);
  void parse_location(const std::string& line);
  void declare_registers(const std::string& declaration);
  void declare_variable(const std::string& declaration);
  void parse_call(const std::string& text, Instruction& inst);
  void resolve_branches();
  void number_wgmma_registers();

  // ---- symbols and operands (operands.cpp)
  int new_register(RegClass cls, const std::string& name);
  Register* find_register(const std::string& name);
  const Symbol* find_symbol(const std::string& name) const;
  Register constant(RegClass cls, u64 value);
  Register special_register(const std::string& name);
  bool symbol_value(const std::string& name, u64& value, Space& space) const;
  Register operand(const std::string& text, RegClass cls, bool is_float = false);
  AddressText address(const std::string& text);
  int predicate_operand(const std::string& text, bool& negated);
  int plain_predicate(const std::string& text);
  void push(Instruction& inst, const std::string& text, RegClass cls, bool is_float = false);
  void push_all(Instruction& inst, const Operands& operands, std::initializer_list<RegClass> classes,
                bool is_float = false);
  int push_vector(Instruction& inst, const std::string& text, RegClass cls, bool is_float = false);

  // ---- decoding; each family returns whether the opcode is one of its own
  void decode_instruction(Instruction& inst, const Opcode& op, const Operands& operands);
  bool decode_control(Instruction&, const Opcode&, const Operands&);   // decode_memory.cpp
  bool decode_memory(Instruction&, const Opcode&, const Operands&);
  bool decode_atomic(Instruction&, const Opcode&, const Operands&);
  bool decode_collective(Instruction&, const Opcode&, const Operands&);
  bool decode_matrix(Instruction&, const Opcode&, const Operands&);    // decode_tensor.cpp
  bool decode_wgmma(Instruction&, const Opcode&, const Operands&);
  bool decode_copy(Instruction&, const Opcode&, const Operands&);      // decode_async.cpp
  bool decode_tensormap(Instruction&, const Opcode&, const Operands&);
  bool decode_barrier(Instruction&, const Opcode&, const Operands&);
  bool decode_mbarrier(Instruction&, const Opcode&, const Operands&);
  bool decode_fence(Instruction&, const Opcode&, const Operands&);
  bool decode_move(Instruction&, const Opcode&, const Operands&);      // decode_move.cpp
  bool decode_predicate(Instruction&, const Opcode&, const Operands&);
  bool decode_integer(Instruction&, const Opcode&, const Operands&);   // decode_integer.cpp
  bool decode_float(Instruction&, const Opcode&, const Operands&);     // decode_float.cpp
  bool decode_half(Instruction&, const Opcode&, const Operands&);
  bool decode_convert(Instruction&, const Opcode&, const Operands&);   // decode_convert.cpp

  ModuleText& module_;
  Program& program_;
  std::vector<Scope> scopes_;
  int scope_ = 0;
  std::map<std::pair<RegClass, u64>, int> constants_;
  std::map<std::string, Register> specials_;
  u32 shared_top_ = 0;
  std::vector<BranchFixup> branches_;
  int location_ = -1;
  std::map<std::tuple<int, int, int>, int> locations_;
  std::vector<std::string> call_stack_;
  std::string return_label_;
  int return_scope_ = 0;
  int calls_ = 0;
};

}  // namespace ptxemu
