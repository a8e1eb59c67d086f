// The named tuples of chunkattn/args.py as kernel parameters. Positions follow the fields there.
#pragma once
#include "chunkattn/core/params.h"
#include "chunkattn/sched/plan.h"
#include "signature.h"
#include "tensor.h"

namespace chunkattn {

struct AttentionCall {
  AttentionParams params;
  int64_t num_splits = 0;
  const int64_t* plan = nullptr;  // words, may be nullptr
  int64_t plan_words = 0;
  void* workspace = nullptr;  // may be nullptr
  int64_t workspace_bytes = 0;
  bool requires_grad = false;  // some tensor that validation looks at
};

struct AppendCall {
  AppendParams params;
  bool requires_grad = false;
};

struct PlanCall {
  Tensor cu_seqlens_q, seq_lens, words;
  AttentionParams facts;  // no data
  int64_t num_splits = 0;
};

// The problem facts that a plan depends on, without data.
AttentionParams plan_facts(int64_t num_tokens, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim,
                           int64_t head_dim_v, DType dtype, bool nhd);

// `signature` (may be nullptr) receives everything validation looks at: presence, dtype, sizes, strides, options,
// shared memory.
AttentionCall read_attention(PyObject* args, Signature* signature);
PlanCall read_plan(PyObject* args);
AppendCall read_append(PyObject* args, Signature* signature);
MergeParams read_merge(PyObject* args);

}  // namespace chunkattn
