// The named tuples of chunkattn/args.py as kernel parameters. Positions follow the fields there.
#pragma once
#include "chunkattn/core/params.h"
#include "chunkattn/sched/plan.h"
#include "tensor.h"

namespace chunkattn {

struct AttentionCall {
  AttentionParams params;
  int64_t num_splits = 0;
  const int64_t* plan = nullptr;  // words, may be nullptr
  int64_t plan_words = 0;
  void* workspace = nullptr;      // may be nullptr
  int64_t workspace_bytes = 0;
};

AttentionCall read_attention(PyObject* args);
AppendParams read_append(PyObject* args);
MergeParams read_merge(PyObject* args);

}  // namespace chunkattn
