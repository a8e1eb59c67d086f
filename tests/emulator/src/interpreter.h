// The SIMT interpreter loop.
#pragma once
#include "machine.h"

namespace ptxemu {

/// Runs until the warp blocks, yields, ends, or has used up its budget of instructions.
void run_warp(Warp& warp, u64 budget);

}  // namespace ptxemu
