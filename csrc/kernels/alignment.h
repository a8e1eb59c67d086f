// Whether addresses and strides allow wide accesses; asked on the host, before a launch.
#pragma once
#include <cstdint>

namespace chunkattn {

inline bool is_multiple(int64_t bytes, int64_t unit) { return bytes % unit == 0; }
inline bool is_aligned(const void* pointer, int64_t unit) { return reinterpret_cast<uintptr_t>(pointer) % unit == 0; }

}  // namespace chunkattn
