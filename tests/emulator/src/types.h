// Integer names, the error type and printf into a string.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace ptxemu {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

constexpr int kWarpSize = 32;
constexpr u32 kFullMask = ~0u;

/// Stops a load or a launch. `kind` is stable: tests and the mutation score match on it.
struct EmulatorError : std::runtime_error {
  std::string kind;
  EmulatorError(std::string error_kind, const std::string& message)
      : std::runtime_error(message), kind(std::move(error_kind)) {}
  explicit EmulatorError(const std::string& message) : EmulatorError("unsupported", message) {}
};

/// printf into a std::string.
[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
  char buffer[2048];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(buffer, sizeof buffer, pattern, arguments);
  va_end(arguments);
  return buffer;
}

inline u32 round_up(u32 value, u32 multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace ptxemu
