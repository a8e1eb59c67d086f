#include "decoder.h"

#include <algorithm>
#include <cstdlib>

#include "handlers.h"
#include "text.h"

namespace ptxemu {

void reject(const Opcode& op) { throw EmulatorError("instruction not emulated: " + op.full); }

u64 integer_literal(const std::string& text) {
  return text[0] == '-' ? 0 - strtoull(text.c_str() + 1, nullptr, 0) : strtoull(text.c_str(), nullptr, 0);
}

void Decoder::decode(const std::string& kernel) {
  const auto found = module_.functions.find(kernel);
  if (found == module_.functions.end() || !found->second.is_entry)
    throw EmulatorError("no such kernel: " + kernel);
  const FunctionText& function = found->second;
  program_.name = kernel;
  program_.files = module_.files;
  parse_directives(function.directives);
  parse_parameters(function.parameters);
  place_shared(function);
  call_stack_.push_back(kernel);
  parse_body(function.begin, function.end);

  Instruction last;
  last.handler = exec_exit;
  last.is_exit = true;
  last.definitions = 0;
  last.taint = Taint::Own;
  last.counter = CounterClass::Control;
  last.text = "(end of kernel)";
  last.location = location_;
  program_.code.push_back(last);
  resolve_branches();
  number_wgmma_registers();
  for (Instruction& inst : program_.code) {
    const CounterClass c = inst.counter;
    inst.touches_memory = c == CounterClass::GlobalLoad || c == CounterClass::GlobalStore ||
                          c == CounterClass::SharedLoad || c == CounterClass::SharedStore ||
                          c == CounterClass::Atomic || c == CounterClass::Async || c == CounterClass::Fence ||
                          (c == CounterClass::Matrix && inst.handler != exec_mma) ||
                          (c == CounterClass::Barrier && inst.handler != exec_barrier);
  }
  allocate_registers(program_);
}

// ---------------------------------------------------------------- kernel scope

void Decoder::parse_directives(const std::string& directives) {
  const auto numbers = [&](const char* name, u32* out) {
    const size_t at = directives.find(name);
    if (at == std::string::npos) return false;
    const char* text = directives.c_str() + at + strlen(name);
    for (int k = 0; k < 3; k++) {
      char* end;
      out[k] = strtoul(text, &end, 10);
      while (*end == ' ' || *end == '\t') end++;
      if (*end != ',') {
        for (int rest = k + 1; rest < 3; rest++) out[rest] = 1;
        break;
      }
      text = end + 1;
    }
    return true;
  };
  u32 threads[3] = {1, 1, 1};
  if (numbers(".reqntid", threads) || numbers(".maxntid", threads))
    program_.max_threads = threads[0] * threads[1] * threads[2];
  numbers(".reqnctapercluster", program_.cluster);
}

void Decoder::parse_parameters(const std::string& parameters) {
  int offset = 0;
  for (const std::string& text : split_operands(parameters)) {
    VariableText variable = parse_variable(text);
    const size_t bytes = variable.bytes();
    const size_t align = text.find(".align");
    u32 alignment = type_bytes(variable.type);
    if (!contains(text, ".ptr") && align != std::string::npos)
      alignment = atoi(text.c_str() + align + strlen(".align"));
    offset = round_up(offset, std::max<u32>(1, alignment));
    program_.parameters.push_back({variable.name, offset, int(bytes)});
    scopes_[0].symbols[variable.name] = {Space::Param, u64(offset)};
    offset += bytes;
  }
  program_.parameter_bytes = offset;
}

/// The functions whose text a kernel reaches, callees before callers.
void Decoder::collect_bodies(const FunctionText& function, std::vector<const FunctionText*>& found) {
  if (std::find(found.begin(), found.end(), &function) != found.end()) return;
  found.push_back(&function);
  const std::string body = module_.source.substr(function.begin, function.end - function.begin);
  for (const auto& [name, callee] : module_.functions)
    if (!callee.is_entry && callee.is_defined && contains(body, name.c_str())) collect_bodies(callee, found);
}

/// Static shared variables of the kernel and of what it calls, then the dynamic window behind them.
void Decoder::place_shared(const FunctionText& kernel) {
  std::vector<const FunctionText*> bodies;
  collect_bodies(kernel, bodies);
  for (const FunctionText* function : bodies) {
    const std::string body = module_.source.substr(function->begin, function->end - function->begin);
    for (const auto& [name, declaration] : module_.shared)
      if (!scopes_[0].symbols.count(name) && contains(body, name.c_str())) declare_variable(declaration);
    size_t at = 0;
    while ((at = body.find(".shared ", at)) != std::string::npos) {
      const size_t previous = body.find_last_of(";{}\n", at);
      const size_t begin = previous == std::string::npos ? 0 : previous + 1, end = body.find(';', at);
      if (trim(body.substr(begin, at - begin)).empty()) declare_variable(body.substr(at, end - at));
      at = end;
    }
  }
  program_.static_shared = round_up(shared_top_, 16);
  if (!module_.extern_shared.empty()) {
    program_.static_shared = round_up(program_.static_shared, module_.extern_shared_alignment);
    scopes_[0].symbols[module_.extern_shared] = {Space::Shared, kSharedBase + program_.static_shared};
  }
}

// ---------------------------------------------------------------- statements

void Decoder::parse_body(size_t begin, size_t end) {
  const std::string& source = module_.source;
  std::string pending;
  size_t first = begin;  // where the pending statement begins
  bool empty = true;     // pending holds nothing but blanks
  for (size_t i = begin; i < end; i++) {
    const char c = source[i];
    if (empty && !isspace((unsigned char)c)) {
      first = i;
      if (c == '.' && (source.compare(i, 4, ".loc") == 0 || source.compare(i, 5, ".file") == 0)) {
        const size_t stop = std::min(source.find('\n', i), end);
        if (source[i + 1] == 'l') parse_location(source.substr(i, stop - i));
        i = stop;
        pending.clear();
        continue;
      }
    }
    if (c == ';') {
      parse_statement(trim(pending), first);
      pending.clear();
      empty = true;
    } else if ((c == '{' || c == '}') && empty) {
      if (c == '{') {  // inline asm opens scopes that declare the same names again and again
        scopes_.emplace_back();
        scopes_.back().parent = scope_;
        scope_ = int(scopes_.size()) - 1;
      } else {
        scope_ = scopes_[scope_].parent;
      }
      pending.clear();
    } else if (c == '{') {  // a vector operand
      const size_t close = source.find('}', i);
      pending += source.substr(i, close - i + 1);
      i = close;
    } else if (c == ':' && source[i + 1] != ':' && source[i - 1] != ':' && !empty && trim(pending)[0] != '.' &&
               trim(pending).find_first_of(" \t\n@") == std::string::npos) {
      scopes_[scope_].labels[trim(pending)] = int(program_.code.size());
      pending.clear();
      empty = true;
    } else {
      pending += c;
      if (!isspace((unsigned char)c)) empty = false;
    }
  }
}

/// ".loc 1 45 12, function_name $L__info0, inlined_at 1 30 5".
void Decoder::parse_location(const std::string& line) {
  int file = 0, row = 0, column = 0, outer_file = 0, outer_row = 0, outer_column = 0;
  if (sscanf(line.c_str(), ".loc %d %d %d", &file, &row, &column) < 2) return;
  const auto known = module_.file_index.find(file);
  SourceLocation location;
  location.file = known == module_.file_index.end() ? -1 : known->second;
  location.line = row;
  const size_t inlined = line.find("inlined_at");
  if (inlined != std::string::npos &&
      sscanf(line.c_str() + inlined, "inlined_at %d %d %d", &outer_file, &outer_row, &outer_column) == 3) {
    const auto outer = locations_.find({outer_file, outer_row, outer_column});
    if (outer != locations_.end()) {
      location.inlined_at = outer->second;
    } else {
      const auto outer_known = module_.file_index.find(outer_file);
      SourceLocation plain;
      plain.file = outer_known == module_.file_index.end() ? -1 : outer_known->second;
      plain.line = outer_row;
      program_.locations.push_back(plain);
      location.inlined_at = int(program_.locations.size()) - 1;
    }
  }
  program_.locations.push_back(location);
  location_ = int(program_.locations.size()) - 1;
  locations_[{file, row, column}] = location_;
}

void Decoder::parse_statement(const std::string& statement, size_t position) {
  if (statement.empty() || starts_with(statement, ".pragma") || starts_with(statement, ".noreturn")) return;
  if (starts_with(statement, ".reg")) return declare_registers(trim(statement.substr(4)));
  if (starts_with(statement, ".shared")) return;  // placed already
  if (starts_with(statement, ".local") || starts_with(statement, ".param")) return declare_variable(statement);

  Instruction inst;
  std::string text = statement;
  if (text[0] == '@') {
    const size_t end = text.find_first_of(" \t\n");
    inst.guard = predicate_operand(text.substr(1, end - 1), inst.guard_negated);
    text = trim(text.substr(end));
  }
  const size_t end = text.find_first_of(" \t\n{[(");
  std::string flat = statement;
  std::replace(flat.begin(), flat.end(), '\n', ' ');
  std::replace(flat.begin(), flat.end(), '\t', ' ');
  program_.texts.push_back(std::make_unique<std::string>(flat));
  inst.text = program_.texts.back()->c_str();
  inst.ptx_line = module_.line_of(position);
  inst.location = location_;
  try {
    if (starts_with(text, "call")) return parse_call(text, inst);
    const Opcode opcode(text.substr(0, end));
    Operands operands;
    if (end != std::string::npos) operands = split_operands(text.substr(end));
    decode_instruction(inst, opcode, operands);
  } catch (const EmulatorError& error) {
    throw EmulatorError(format("%s; PTX line %d: %s", error.what(), inst.ptx_line, flat.c_str()));
  } catch (const std::out_of_range&) {
    throw EmulatorError(format("too few operands; PTX line %d: %s", inst.ptx_line, flat.c_str()));
  }
  program_.code.push_back(std::move(inst));
}

/// Inlines the callee: its formal parameters become names of the caller's .param variables.
void Decoder::parse_call(const std::string& text, Instruction& inst) {
  const size_t blank = text.find_first_of(" \t\n(");
  const Operands parts = split_operands(text.substr(blank));
  const auto list = [](const std::string& item) {
    return split_operands(item.substr(1, item.size() - 2));
  };
  Operands results, arguments;
  size_t at = 0;
  if (parts.at(0)[0] == '(') results = list(parts[at++]);
  const std::string name = parts.at(at++);
  if (at < parts.size() && parts[at][0] == '(') arguments = list(parts[at]);
  const auto found = module_.functions.find(name);
  if (found == module_.functions.end() || found->second.is_entry)
    throw EmulatorError("indirect or unknown call of " + name);
  const FunctionText& callee = found->second;
  if (!callee.is_defined) {
    // Only the two services of the runtime exist: printf does nothing, a failed assert stops.
    if (name == "vprintf") return;
    if (name != "__assertfail") throw EmulatorError("call of the undefined function " + name);
    inst.handler = exec_trap;
    inst.definitions = 0;
    inst.has_side_effect = true;
    program_.code.push_back(std::move(inst));
    return;
  }
  if (inst.guard >= 0) throw EmulatorError("predicated call");
  if (std::find(call_stack_.begin(), call_stack_.end(), name) != call_stack_.end())
    throw EmulatorError("recursive call of " + name);

  Scope frame;
  frame.parent = 0;
  const auto bind = [&](const std::string& formals, const Operands& actuals) {
    const Operands names = split_operands(formals);
    if (names.size() != actuals.size()) throw EmulatorError("wrong number of arguments for " + name);
    for (size_t k = 0; k < names.size(); k++) {
      const std::string formal = parse_variable(names[k]).name;
      if (const Symbol* symbol = find_symbol(actuals[k]))
        frame.symbols[formal] = *symbol;
      else if (const Register* reg = find_register(actuals[k]))
        frame.registers[formal] = *reg;
      else
        throw EmulatorError("argument " + actuals[k]);
    }
  };
  bind(callee.returns, results);
  bind(callee.parameters, arguments);

  const int caller_scope = scope_, caller_return_scope = return_scope_, caller_location = location_;
  const std::string caller_label = return_label_;
  scopes_.push_back(std::move(frame));
  scope_ = return_scope_ = int(scopes_.size()) - 1;
  return_label_ = format("$return%d", calls_++);
  call_stack_.push_back(name);
  parse_body(callee.begin, callee.end);
  scopes_[return_scope_].labels[return_label_] = int(program_.code.size());
  call_stack_.pop_back();
  scope_ = caller_scope;
  return_scope_ = caller_return_scope;
  return_label_ = caller_label;
  location_ = caller_location;
}

/// "b32 %r<10>" or "pred p, q".
void Decoder::declare_registers(const std::string& declaration) {
  const size_t space = declaration.find_first_of(" \t");
  const RegClass cls = type_class(trim(declaration.substr(0, space)).substr(1));
  for (const std::string& item : split(declaration.substr(space), ',')) {
    const std::string name = trim(item);
    const size_t angle = name.find('<');
    if (angle == std::string::npos) {
      scopes_[scope_].registers[name] = {new_register(cls, name), cls};
      continue;
    }
    const int count = atoi(name.c_str() + angle + 1);
    for (int k = 0; k < count; k++) {
      const std::string numbered = name.substr(0, angle) + std::to_string(k);
      scopes_[scope_].registers[numbered] = {new_register(cls, numbered), cls};
    }
  }
}

/// ".shared .align 8 .b8 name[16]"; .local and .param variables of a body live in local memory.
void Decoder::declare_variable(const std::string& declaration) {
  const VariableText variable = parse_variable(declaration);
  if (starts_with(trim(declaration), ".shared")) {
    shared_top_ = round_up(shared_top_, variable.alignment);
    scopes_[0].symbols[variable.name] = {Space::Shared, kSharedBase + shared_top_};
    shared_top_ += variable.bytes();
  } else {
    program_.local_bytes = round_up(program_.local_bytes, std::max<u32>(variable.alignment, 4));
    scopes_[scope_].symbols[variable.name] = {Space::Local, program_.local_bytes};
    program_.local_bytes += variable.bytes();
  }
}

void Decoder::resolve_branches() {
  for (const BranchFixup& branch : branches_) {
    int target = -1;
    for (int s = branch.scope; s >= 0 && target < 0; s = scopes_[s].parent) {
      const auto found = scopes_[s].labels.find(branch.label);
      if (found != scopes_[s].labels.end()) target = found->second;
    }
    if (target < 0) throw EmulatorError("unknown label " + branch.label);
    program_.code[branch.instruction].branch_target = target;
  }
}

/// Numbers the registers that wgmma reads and writes asynchronously, and marks whoever touches them.
void Decoder::number_wgmma_registers() {
  std::unordered_map<int, u16> numbers;
  for (const Instruction& inst : program_.code)
    if (inst.handler == exec_wgmma)
      for (size_t k = 0; k < inst.operands.size(); k++)
        if (int(k) < inst.definitions || (inst.a_from_registers && int(k) >= inst.a_begin && int(k) < inst.b_begin))
          numbers.try_emplace(inst.operands[k], u16(numbers.size()));
  program_.wgmma_register_count = numbers.size();
  if (numbers.empty()) return;
  for (Instruction& inst : program_.code)
    for_each_register(inst, [&](int& reg, bool, bool) {
      const auto found = numbers.find(reg);
      if (found != numbers.end()) inst.wgmma_registers.push_back(found->second);
    });
}

// ---------------------------------------------------------------- one instruction

void Decoder::decode_instruction(Instruction& inst, const Opcode& op, const Operands& operands) {
  const bool known = decode_control(inst, op, operands) || decode_memory(inst, op, operands) ||
                     decode_atomic(inst, op, operands) || decode_matrix(inst, op, operands) ||
                     decode_wgmma(inst, op, operands) || decode_copy(inst, op, operands) ||
                     decode_tensormap(inst, op, operands) || decode_barrier(inst, op, operands) ||
                     decode_mbarrier(inst, op, operands) || decode_fence(inst, op, operands) ||
                     decode_collective(inst, op, operands) || decode_move(inst, op, operands) ||
                     decode_convert(inst, op, operands) || decode_predicate(inst, op, operands) ||
                     decode_half(inst, op, operands) || decode_float(inst, op, operands) ||
                     decode_integer(inst, op, operands);
  if (!known || !inst.handler) reject(op);
  const std::string unknown = op.unknown();
  if (!unknown.empty()) throw EmulatorError("modifier ." + unknown + " of " + op.full + " not emulated");
}

}  // namespace ptxemu
