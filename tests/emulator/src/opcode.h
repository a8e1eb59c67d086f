// "mad.lo.s32" taken apart. A modifier that no decoder asked about is an error, so that nothing is
// silently ignored.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "module_text.h"

namespace ptxemu {

class Opcode {
 public:
  explicit Opcode(const std::string& text);

  std::string full;
  std::vector<std::string> parts;
  std::string base;  // first part
  std::string type;  // last part
  RegClass cls = RegClass::B32;
  bool is_float = false, is_signed = false;

  bool is(const char* name) const { return base == name; }
  /// Whether a modifier is present; it then counts as understood.
  bool has(const char* modifier) const;
  /// Part number k, or ""; it then counts as understood.
  std::string part(size_t k) const;
  /// Modifiers that may be there and change nothing here.
  void accept(std::initializer_list<const char*> modifiers) const;
  void accept_all() const;
  /// "" or the first modifier nobody asked about.
  std::string unknown() const;

 private:
  mutable std::vector<bool> understood_;
};

}  // namespace ptxemu
