#include "text.h"

#include <cstring>

#include "types.h"

namespace ptxemu {

std::string trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

bool starts_with(const std::string& text, const char* prefix) {
  return text.compare(0, strlen(prefix), prefix) == 0;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::string last_word(const std::string& text) { return text.substr(text.find_last_of(" \t\n") + 1); }

std::vector<std::string> split_operands(const std::string& text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (char c : text) {
    if (c == '{' || c == '[' || c == '(') depth++;
    if (c == '}' || c == ']' || c == ')') depth--;
    if (c == ',' && depth == 0) {
      parts.push_back(trim(part));
      part.clear();
    } else {
      part += c;
    }
  }
  part = trim(part);
  if (!part.empty()) parts.push_back(part);
  return parts;
}

std::vector<std::string> vector_elements(const std::string& operand) {
  if (operand.empty() || operand[0] != '{') return {operand};
  return split_operands(operand.substr(1, operand.size() - 2));
}

std::vector<std::string> bracket_elements(const std::string& operand) {
  if (operand.size() < 2 || operand[0] != '[') throw EmulatorError("expected [...], got " + operand);
  return split_operands(operand.substr(1, operand.size() - 2));
}

std::pair<std::string, std::string> split_at_bar(const std::string& text) {
  const size_t bar = text.find('|');
  if (bar == std::string::npos) return {trim(text), ""};
  return {trim(text.substr(0, bar)), trim(text.substr(bar + 1))};
}

size_t skip_braces(const std::string& text, size_t begin) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < text.size(); i++) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted) continue;
    if (text[i] == '{') depth++;
    if (text[i] == '}' && --depth == 0) return i + 1;
  }
  return text.size();
}

std::string without_comments(const std::string& text) {
  std::string out = text;
  size_t i = 0;
  bool quoted = false;
  while (i < out.size()) {
    if (out[i] == '"') quoted = !quoted;
    if (!quoted && out.compare(i, 2, "//") == 0) {
      while (i < out.size() && out[i] != '\n') out[i++] = ' ';
    } else if (!quoted && out.compare(i, 2, "/*") == 0) {
      const size_t end = out.find("*/", i);
      const size_t stop = end == std::string::npos ? out.size() : end + 2;
      for (; i < stop; i++)
        if (out[i] != '\n') out[i] = ' ';
    } else {
      i++;
    }
  }
  return out;
}

}  // namespace ptxemu
