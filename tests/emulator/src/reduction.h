// The arithmetic of atomics and of reducing copies.
#pragma once
#include "instruction.h"

namespace ptxemu {

/// New contents of a memory location: op(old at `memory`, value); swap is for compare-and-swap.
u64 combine_bits(AtomicOp op, ScalarType type, const u8* memory, u64 value, u64 swap = 0);

}  // namespace ptxemu
