// A PTX module before decoding: its functions, variables and source files.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "program.h"

namespace ptxemu {

struct FunctionText {
  std::string name;
  bool is_entry = false;
  bool is_defined = false;
  std::string returns;     // text between the parentheses before the name
  std::string parameters;  // text between the parentheses after the name
  std::string directives;  // .maxntid and its kin
  size_t begin = 0, end = 0;  // body in ModuleText::source
};

struct ModuleText {
  std::string source;  // without comments
  std::map<std::string, FunctionText> functions;
  std::vector<std::string> entries;             // in the order of the text
  std::map<std::string, std::string> shared;    // module-scope .shared declarations by name
  std::string extern_shared;                    // name of the dynamic shared memory
  u32 extern_shared_alignment = 16;
  std::vector<std::string> files;
  std::map<int, int> file_index;  // number in .file -> index into files

  explicit ModuleText(const std::string& ptx);
  int line_of(size_t position) const;

  ModuleGlobals globals;

 private:
  std::vector<size_t> line_starts_;
  void declare(const std::string& declaration);
  void declare_function(const std::string& header, size_t begin, size_t end, bool defined);
  void declare_global(const std::string& declaration);
};

/// ".align 8 .b8 name[16]" taken apart.
struct VariableText {
  std::string name, type;
  u32 alignment = 1;
  u64 count = 1;
  bool is_array = false;
  u64 bytes() const;
};
VariableText parse_variable(const std::string& declaration);

/// Bytes of a PTX type such as "s32" or "bf16x2"; 0 for "pred".
int type_bytes(const std::string& type);
RegClass type_class(const std::string& type);

}  // namespace ptxemu
