// What the attention kernels are launched with.
#pragma once
#include "chunkattn/core/divide.h"
#include "chunkattn/core/params.h"
#include "chunkattn/epilogue/partial.cuh"
#include "chunkattn/kv/paged_rows.cuh"
#include "chunkattn/sched/plan.h"

namespace chunkattn {

struct KernelParams {
  AttentionParams attention;
  PlanSpec spec;  // what the plan must have been made for
  const int64_t* plan = nullptr;
  int32_t* queue_heads = nullptr;  // [2]: decode, prefill; zero at the start
  int32_t* arrivals = nullptr;     // [items]; zero at the start
  PartialStates partials;
  int64_t carry_rows = 0;  // first partial row of two tiles a CTA; invariant mode only
  Divisor group, page_size;
  Access query_access = Access::kElements, key_access = Access::kElements, value_access = Access::kElements;
  int32_t neighbour_rows = 1;  // of K and V, as PagedLoader takes them
  bool out_aligned = false;    // four elements of out at once
};

}  // namespace chunkattn
