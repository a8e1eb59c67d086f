#pragma once
#include "chunkattn/core/params.h"

namespace chunkattn {

// Writes the step's keys and values into the pool, with RoPE and quantisation where asked. Throws
// std::invalid_argument before anything is written.
void append_kv(const AppendParams& params, int num_threads);

}  // namespace chunkattn
