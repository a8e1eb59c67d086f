// Division of non-negative 32-bit integers by a number that is fixed before the launch: one multiplication and a shift.
#pragma once
#include <cstdint>

#include "chunkattn/core/host_device.h"

namespace chunkattn {

// Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994, for dividends below 2^31.
struct Divisor {
  uint32_t value = 1, multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t divisor) : value(static_cast<uint32_t>(divisor)) {
    while ((uint64_t{1} << shift) < value) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + value - 1) / value);
  }

  CHUNKATTN_HOST_DEVICE int32_t quotient(int32_t dividend) const {
    return static_cast<int32_t>((static_cast<uint64_t>(static_cast<uint32_t>(dividend)) * multiplier) >> (31 + shift));
  }
  CHUNKATTN_HOST_DEVICE int32_t remainder(int32_t dividend, int32_t quotient) const {
    return dividend - quotient * static_cast<int32_t>(value);
  }
};

}  // namespace chunkattn
