#include "opcode.h"

#include "text.h"

namespace ptxemu {

Opcode::Opcode(const std::string& text) : full(text) {
  // "::" belongs to a modifier ("shared::cta"), "." separates.
  parts = split(text, '.');
  base = parts.front();
  type = parts.back();
  understood_.assign(parts.size(), false);
  understood_.front() = understood_.back() = true;
  cls = type_class(type);
  is_float = starts_with(type, "f") || starts_with(type, "bf");
  is_signed = starts_with(type, "s") && type.size() <= 3;
}

bool Opcode::has(const char* modifier) const {
  for (size_t k = 1; k < parts.size(); k++)
    if (parts[k] == modifier) {
      understood_[k] = true;
      return true;
    }
  return false;
}

std::string Opcode::part(size_t k) const {
  if (k >= parts.size()) return "";
  understood_[k] = true;
  return parts[k];
}

void Opcode::accept(std::initializer_list<const char*> modifiers) const {
  for (const char* modifier : modifiers) has(modifier);
}

void Opcode::accept_all() const { understood_.assign(parts.size(), true); }

std::string Opcode::unknown() const {
  for (size_t k = 0; k < parts.size(); k++)
    if (!understood_[k]) return parts[k];
  return "";
}

}  // namespace ptxemu
