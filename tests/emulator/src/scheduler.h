// Running a launch: the interpreter loop, warps inside a cluster, clusters of a grid.
#pragma once
#include "machine.h"

namespace ptxemu {

/// Runs the whole grid; throws EmulatorError where it had to stop.
void run_grid(Launch& launch);

}  // namespace ptxemu
