#pragma once
#include "chunkattn/core/params.h"

namespace chunkattn {

// Combines two partial attention states of disjoint key sets; the result may be one of them.
void merge_states(const MergeParams& params, int num_threads);

}  // namespace chunkattn
