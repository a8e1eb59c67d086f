// Cutting PTX text: trimming, splitting at separators, brackets and words.
#pragma once
#include <string>
#include <vector>

namespace ptxemu {

std::string trim(const std::string& text);
std::vector<std::string> split(const std::string& text, char separator);
bool starts_with(const std::string& text, const char* prefix);
bool contains(const std::string& text, const char* part);
/// What follows the last blank: the name in a declaration.
std::string last_word(const std::string& text);

/// Splits at commas outside brackets and braces.
std::vector<std::string> split_operands(const std::string& text);
/// "{a, b}" -> a, b; "a" -> a.
std::vector<std::string> vector_elements(const std::string& operand);
/// "[map, {c0, c1}]" -> map, {c0, c1}.
std::vector<std::string> bracket_elements(const std::string& operand);
/// "d|p" -> d, p; the second is empty where there is no bar.
std::pair<std::string, std::string> split_at_bar(const std::string& text);

/// First position after the brace group that opens at or behind begin.
size_t skip_braces(const std::string& text, size_t begin);

/// Blanks out comments; line numbers stay what they were.
std::string without_comments(const std::string& text);

}  // namespace ptxemu
