#include "module_text.h"

#include <algorithm>
#include <cstdlib>

#include "text.h"

namespace ptxemu {

int type_bytes(const std::string& type) {
  if (type == "pred") return 0;
  if (type == "f16x2" || type == "bf16x2" || type == "tf32") return 4;
  if (type == "e4m3x2" || type == "e5m2x2") return 2;
  int bits = 0;
  for (char c : type.substr(starts_with(type, "bf") ? 2 : 1))
    if (isdigit((unsigned char)c)) bits = bits * 10 + (c - '0');
  return bits / 8;
}

RegClass type_class(const std::string& type) {
  if (type == "pred") return RegClass::Pred;
  const int bytes = type_bytes(type);
  return bytes <= 2   ? RegClass::B16
         : bytes == 4 ? RegClass::B32
         : bytes == 8 ? RegClass::B64
                      : RegClass::B128;
}

u64 VariableText::bytes() const { return count * std::max(1, type_bytes(type)); }

VariableText parse_variable(const std::string& declaration) {
  VariableText variable;
  std::string text = trim(declaration);
  const size_t align = text.find(".align");
  if (align != std::string::npos && !contains(text, ".ptr"))
    variable.alignment = atoi(text.c_str() + align + strlen(".align"));
  size_t bracket = text.find('[');
  if (bracket != std::string::npos) {
    variable.is_array = true;
    for (size_t at = bracket; at != std::string::npos; at = text.find('[', at + 1))
      variable.count *= strtoull(text.c_str() + at + 1, nullptr, 0);
    text = trim(text.substr(0, bracket));
  }
  variable.name = last_word(text);
  for (const std::string& token : split(text.substr(0, text.size() - variable.name.size()), ' ')) {
    const std::string word = trim(token);
    if (word.size() > 2 && word[0] == '.' && isdigit((unsigned char)word.back()) && !starts_with(word, ".v")) {
      variable.type = word.substr(1);
      break;
    }
  }
  if (variable.type.empty()) variable.type = "b8";
  variable.alignment = std::max<u32>(variable.alignment, std::max(1, type_bytes(variable.type)));
  return variable;
}

ModuleText::ModuleText(const std::string& ptx) : source(without_comments(ptx)) {
  line_starts_.push_back(0);
  for (size_t k = 0; k < source.size(); k++)
    if (source[k] == '\n') line_starts_.push_back(k + 1);

  std::string pending;
  size_t i = 0;
  while (i < source.size()) {
    const char c = source[i];
    const bool line_directive = c == '.' && trim(pending).empty();
    if (line_directive && (source.compare(i, 8, ".version") == 0 || source.compare(i, 7, ".target") == 0 ||
                           source.compare(i, 13, ".address_size") == 0 || source.compare(i, 5, ".file") == 0)) {
      const size_t end = std::min(source.find('\n', i), source.size());
      const std::string line = source.substr(i, end - i);
      if (starts_with(line, ".file")) {
        const size_t open = line.find('"'), close = line.find('"', open + 1);
        if (close != std::string::npos) {
          file_index[atoi(line.c_str() + strlen(".file"))] = int(files.size());
          files.push_back(line.substr(open + 1, close - open - 1));
        }
      }
      i = end;
    } else if (c == ';') {
      declare(trim(pending));
      pending.clear();
      i++;
    } else if (c == '{') {
      const std::string header = trim(pending);
      const size_t end = skip_braces(source, i);
      if (contains(header, ".entry") || contains(header, ".func")) {
        declare_function(header, i + 1, end - 1, true);
        pending.clear();
      } else if (contains(header, ".section")) {
        pending.clear();
      } else {
        pending += source.substr(i, end - i);  // an initialiser
      }
      i = end;
    } else {
      pending += c;
      i++;
    }
  }
}

int ModuleText::line_of(size_t position) const {
  return int(std::upper_bound(line_starts_.begin(), line_starts_.end(), position) - line_starts_.begin());
}

void ModuleText::declare(const std::string& declaration) {
  if (contains(declaration, ".func")) return declare_function(declaration, 0, 0, false);
  const std::string head = declaration.substr(0, declaration.find_first_of("=["));
  if (contains(head, ".shared")) {
    const VariableText variable = parse_variable(declaration);
    if (contains(head, ".extern")) {
      extern_shared = variable.name;
      extern_shared_alignment = std::max<u32>(16, variable.alignment);
    } else {
      shared[variable.name] = declaration;
    }
  } else if (contains(head, ".global") || contains(head, ".const")) {
    declare_global(declaration);
  }
}

void ModuleText::declare_function(const std::string& header, size_t begin, size_t end, bool defined) {
  FunctionText function;
  function.is_entry = contains(header, ".entry");
  function.is_defined = defined;
  function.begin = begin;
  function.end = end;
  std::string rest = header.substr(header.find(function.is_entry ? ".entry" : ".func"));
  rest = trim(rest.substr(rest.find_first_of(" \t\n(")));
  if (rest[0] == '(') {
    const size_t close = rest.find(')');
    function.returns = trim(rest.substr(1, close - 1));
    rest = trim(rest.substr(close + 1));
  }
  const size_t name_end = std::min(rest.find_first_of(" \t\n("), rest.size());
  function.name = rest.substr(0, name_end);
  const size_t open = rest.find('(', name_end);
  if (open != std::string::npos) {
    const size_t close = rest.find(')', open);
    function.parameters = trim(rest.substr(open + 1, close - open - 1));
    function.directives = rest.substr(close + 1);
  } else {
    function.directives = rest.substr(name_end);
  }
  const auto known = functions.find(function.name);
  if (known != functions.end() && known->second.is_defined && !defined) return;
  if (function.is_entry && defined) entries.push_back(function.name);
  functions[function.name] = function;
}

/// A module-scope .global / .const variable with an optional initialiser.
void ModuleText::declare_global(const std::string& declaration) {
  const size_t equals = declaration.find('=');
  const VariableText variable = parse_variable(declaration.substr(0, equals));
  if (globals.addresses.count(variable.name)) return;
  const u32 alignment = std::max<u32>(16, variable.alignment);
  auto bytes = std::make_unique<u8[]>(variable.bytes() + alignment);
  const u64 address = (reinterpret_cast<u64>(bytes.get()) + alignment - 1) / alignment * alignment;
  const int element = std::max(1, type_bytes(variable.type));
  if (equals != std::string::npos) {
    std::string initialiser = declaration.substr(equals + 1);
    initialiser.erase(std::remove_if(initialiser.begin(), initialiser.end(),
                                     [](char c) { return c == '{' || c == '}' || isspace((unsigned char)c); }),
                      initialiser.end());
    u64 k = 0;
    for (const std::string& item : split(initialiser, ',')) {
      if (item.empty() || k >= variable.count) continue;
      u64 value = 0;
      std::string text = item;
      if (starts_with(text, "generic(")) text = text.substr(8, text.size() - 9);
      if (isdigit((unsigned char)text[0]) || text[0] == '-') {
        if (text.size() == 10 && (text[1] == 'f' || text[1] == 'F'))
          value = strtoul(text.c_str() + 2, nullptr, 16);
        else if (text.size() == 18 && (text[1] == 'd' || text[1] == 'D'))
          value = strtoull(text.c_str() + 2, nullptr, 16);
        else
          value = text[0] == '-' ? 0 - strtoull(text.c_str() + 1, nullptr, 0) : strtoull(text.c_str(), nullptr, 0);
      } else if (const auto symbol = globals.addresses.find(text); symbol != globals.addresses.end()) {
        value = symbol->second;
      } else {
        throw EmulatorError("initialiser " + item + " of " + variable.name);
      }
      memcpy(reinterpret_cast<u8*>(address) + k++ * element, &value, element);
    }
  }
  globals.addresses[variable.name] = address;
  const bool writable = !contains(declaration.substr(0, declaration.find('=')), ".const");
  globals.allocations.push_back({address, address + variable.bytes(), writable, true, variable.name});
  globals.storage.push_back(std::move(bytes));
}

}  // namespace ptxemu
