// Symbols and operands of one instruction: registers, literals, special registers, addresses, vectors.
#include <cstdlib>

#include "decoder.h"
#include "text.h"

namespace ptxemu {

int Decoder::new_register(RegClass cls, const std::string& name) {
  program_.register_class.push_back(cls);
  program_.register_name.push_back(name);
  return int(program_.register_class.size()) - 1;
}

Register* Decoder::find_register(const std::string& name) {
  for (int s = scope_; s >= 0; s = scopes_[s].parent) {
    const auto found = scopes_[s].registers.find(name);
    if (found != scopes_[s].registers.end()) return &found->second;
  }
  return nullptr;
}

const Decoder::Symbol* Decoder::find_symbol(const std::string& name) const {
  for (int s = scope_; s >= 0; s = scopes_[s].parent) {
    const auto found = scopes_[s].symbols.find(name);
    if (found != scopes_[s].symbols.end()) return &found->second;
  }
  return nullptr;
}

Register Decoder::constant(RegClass cls, u64 value) {
  const auto [entry, is_new] = constants_.try_emplace({cls, value}, 0);
  if (is_new) {
    entry->second = new_register(cls, format("%llu", (unsigned long long)value));
    program_.constants.push_back({{entry->second, cls}, value});
  }
  return {entry->second, cls};
}

Register Decoder::special_register(const std::string& name) {
  using S = Special;
  static const std::map<std::string, S> known = {
      {"%tid.x", S::TidX}, {"%tid.y", S::TidY}, {"%tid.z", S::TidZ},
      {"%ntid.x", S::NtidX}, {"%ntid.y", S::NtidY}, {"%ntid.z", S::NtidZ},
      {"%ctaid.x", S::CtaidX}, {"%ctaid.y", S::CtaidY}, {"%ctaid.z", S::CtaidZ},
      {"%nctaid.x", S::NctaidX}, {"%nctaid.y", S::NctaidY}, {"%nctaid.z", S::NctaidZ},
      {"%laneid", S::LaneId}, {"%lanemask_eq", S::LaneMaskEq}, {"%lanemask_lt", S::LaneMaskLt},
      {"%lanemask_le", S::LaneMaskLe}, {"%lanemask_gt", S::LaneMaskGt}, {"%lanemask_ge", S::LaneMaskGe},
      {"%warpid", S::WarpId}, {"%nwarpid", S::NwarpId}, {"%smid", S::SmId}, {"%nsmid", S::NsmId},
      {"%clusterid.x", S::ClusteridX}, {"%clusterid.y", S::ClusteridY}, {"%clusterid.z", S::ClusteridZ},
      {"%nclusterid.x", S::NclusteridX}, {"%nclusterid.y", S::NclusteridY}, {"%nclusterid.z", S::NclusteridZ},
      {"%cluster_ctaid.x", S::ClusterCtaidX}, {"%cluster_ctaid.y", S::ClusterCtaidY},
      {"%cluster_ctaid.z", S::ClusterCtaidZ}, {"%cluster_nctaid.x", S::ClusterNctaidX},
      {"%cluster_nctaid.y", S::ClusterNctaidY}, {"%cluster_nctaid.z", S::ClusterNctaidZ},
      {"%cluster_ctarank", S::ClusterCtarank}, {"%cluster_nctarank", S::ClusterNctarank},
      {"%dynamic_smem_size", S::DynamicSharedSize}, {"%total_smem_size", S::TotalSharedSize},
      {"%gridid", S::GridId}};
  const auto seen = specials_.find(name);
  if (seen != specials_.end()) return seen->second;
  const auto which = known.find(name);
  if (which == known.end()) throw EmulatorError("unknown register " + name);
  const Register slot{new_register(RegClass::B32, name), RegClass::B32};
  program_.specials.push_back({slot, which->second});
  return specials_[name] = slot;
}

/// Integer, 0f... or 0d... literal as the bits of a register of class cls.
static bool literal_value(const std::string& text, RegClass cls, bool is_float, u64& value) {
  const bool negative = !text.empty() && text[0] == '-';
  const std::string digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || !isdigit((unsigned char)digits[0])) return false;
  const char kind = digits[0] == '0' && digits.size() > 1 ? tolower(digits[1]) : ' ';
  if (kind == 'f' && digits.size() == 10) {
    const u32 bits = strtoul(digits.c_str() + 2, nullptr, 16);
    value = bits;
    if (cls == RegClass::B64 && is_float) {
      float single;
      memcpy(&single, &bits, 4);
      const double wide = single;
      memcpy(&value, &wide, 8);
    }
  } else if (kind == 'd' && digits.size() == 18) {
    value = strtoull(digits.c_str() + 2, nullptr, 16);
    if (cls == RegClass::B32) {
      double wide;
      memcpy(&wide, &value, 8);
      const float single = wide;
      u32 bits;
      memcpy(&bits, &single, 4);
      value = bits;
    }
  } else {
    value = strtoull(digits.c_str(), nullptr, 0);
    if (negative) value = 0 - value;
  }
  return true;
}

/// Addresses of variables and offsets of parameters.
bool Decoder::symbol_value(const std::string& name, u64& value, Space& space) const {
  if (const Symbol* symbol = find_symbol(name)) {
    value = symbol->address;
    space = symbol->space;
    return true;
  }
  const auto global = module_.globals.addresses.find(name);
  if (global == module_.globals.addresses.end()) return false;
  value = global->second;
  space = Space::Global;
  return true;
}

/// Register of a register, literal, special register or symbol; cls applies to all but registers.
Register Decoder::operand(const std::string& raw, RegClass cls, bool is_float) {
  const std::string text = trim(raw);
  if (const Register* found = find_register(text)) return *found;
  u64 value;
  Space space;
  if (literal_value(text, cls, is_float, value)) return constant(cls, value);
  if (text[0] == '%') return special_register(text);
  if (text == "WARP_SZ") return constant(cls, kWarpSize);
  const size_t plus = text.find('+');
  if (symbol_value(trim(text.substr(0, plus)), value, space)) {
    if (plus != std::string::npos) value += integer_literal(trim(text.substr(plus + 1)));
    return constant(cls, value);
  }
  throw EmulatorError("unknown operand " + text);
}

/// "[%rd1+16]", "[global_smem+64]", "[name]".
Decoder::AddressText Decoder::address(const std::string& raw) {
  std::string text = trim(raw);
  if (text.size() < 2 || text[0] != '[') throw EmulatorError("not an address: " + text);
  text = trim(text.substr(1, text.size() - 2));
  AddressText result;
  std::string base = text;
  const size_t sign = text.find_first_of("+-", 1);
  if (sign != std::string::npos) {
    base = trim(text.substr(0, sign));
    std::string digits = trim(text.substr(sign + 1));
    bool negative = text[sign] == '-';
    if (!negative && !digits.empty() && digits[0] == '-') {  // "+-8"
      negative = true;
      digits = digits.substr(1);
    }
    result.address.offset = strtoll(digits.c_str(), nullptr, 0) * (negative ? -1 : 1);
  }
  u64 value;
  if (const Register* found = find_register(base)) {
    result.address.base = found->id;
    result.address.is64 = found->cls == RegClass::B64;
  } else if (literal_value(base, RegClass::B64, false, value) || symbol_value(base, value, result.space)) {
    result.address.offset += value;
  } else {
    throw EmulatorError("unknown address " + text);
  }
  return result;
}

int Decoder::predicate_operand(const std::string& raw, bool& negated) {
  std::string text = trim(raw);
  negated = text[0] == '!';
  if (negated) text = text.substr(1);
  if (const Register* found = find_register(text)) return found->id;
  u64 value;
  if (literal_value(text, RegClass::Pred, false, value)) return constant(RegClass::Pred, value != 0).id;
  throw EmulatorError("unknown predicate " + text);
}

int Decoder::plain_predicate(const std::string& text) {
  bool negated;
  const int reg = predicate_operand(text, negated);
  if (negated) throw EmulatorError("a negated predicate cannot stand here");
  return reg;
}

void Decoder::push(Instruction& inst, const std::string& text, RegClass cls, bool is_float) {
  const Register reg = operand(text, cls, is_float);
  if (reg.cls != cls) throw EmulatorError("register " + text + " has the wrong width");
  inst.operands.push_back(reg.id);
  inst.classes.push_back(reg.cls);
}

void Decoder::push_all(Instruction& inst, const Operands& operands, std::initializer_list<RegClass> classes,
                       bool is_float) {
  if (operands.size() < classes.size()) throw EmulatorError("too few operands");
  size_t k = 0;
  for (RegClass cls : classes) push(inst, operands[k++], cls, is_float);
}

/// Elements of "{...}"; "_" gets a register of its own, and the widths may differ from cls.
int Decoder::push_vector(Instruction& inst, const std::string& text, RegClass cls, bool is_float) {
  int count = 0;
  for (const std::string& element : vector_elements(text)) {
    const Register reg = element == "_" ? Register{new_register(cls, "_"), cls} : operand(element, cls, is_float);
    inst.operands.push_back(reg.id);
    inst.classes.push_back(reg.cls);
    count++;
  }
  return count;
}

}  // namespace ptxemu
