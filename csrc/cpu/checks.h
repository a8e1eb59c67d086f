// Checks of index contents that only reading them can do, before anything is written.
#pragma once
#include "chunkattn/core/params.h"
#include "chunkattn/sched/plan.h"

namespace chunkattn {

// Throws std::invalid_argument "{arg}: expected …, got …". Pages are checked for positions that some row can see.
void check_batch(const AttentionParams& params, const PlanSpec& spec);

// A plan must have been made for these lengths and this problem.
void check_plan(const AttentionParams& params, const PlanSpec& spec, const int64_t* plan);

}  // namespace chunkattn
