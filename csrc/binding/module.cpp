// The Python module chunkattn._native: Python objects to parameter structs, and nothing else.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>

#include "append_kv.h"
#include "arguments.h"
#include "attention.h"
#include "checks.h"
#include "chosen.h"
#include "launchers.h"
#include "merge_states.h"
#include "pages.h"
#include "signature.h"

namespace chunkattn {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 64;

const IsaTable* isa = nullptr;

void select_isa(const std::string& name) {
  const IsaTable* found = isa_table(name.c_str());
  if (!found) refuse("isa: expected one that this processor has, got '" + name + "'");
  isa = found;
}

// Reads the arguments of a call; false if it must be validated first. A call whose shapes, dtypes, strides and options
// equal those of an earlier, validated one needs no second validation: every layer of a step repeats the first one's.
// Holding the GIL guards the cache.
template <typename Call>
bool read_known(Call (*read)(PyObject*, Signature*), const py::object& args, bool validated, Call* call) {
  static SignatureCache known;
  Signature signature;
  try {
    *call = read(args.ptr(), &signature);
  } catch (const std::exception&) {
    if (validated) throw;
    return false;  // validation says better what is wrong
  }
  if (validated) known.insert(signature);
  // Whether a gradient is wanted depends on more than the arguments: such calls are validated every time.
  return validated || (!call->requires_grad && known.contains(signature));
}

bool attention_call(const py::object& args, int num_threads, bool validated) {
  AttentionCall call;
  if (!read_known(read_attention, args, validated, &call)) return false;
  if (call.plan && call.plan_words != plan_words(call.params.batch.num_requests))
    refuse("plan: expected " + std::to_string(plan_words(call.params.batch.num_requests)) + " words for " +
           std::to_string(call.params.batch.num_requests) + " requests, got " + std::to_string(call.plan_words));
  if (reinterpret_cast<uintptr_t>(call.workspace) % kWorkspaceAlignment)
    refuse("workspace: expected a data pointer aligned to 64 bytes, got one that is not");
  const Settings settings = call.plan ? Settings{} : chosen_settings().find(call.params, num_threads);
  const py::gil_scoped_release released;
  attention(call.params, *isa, settings, num_threads, call.num_splits, call.plan, call.workspace, call.workspace_bytes);
  return true;
}

bool append_call(const py::object& args, int num_threads, bool validated) {
  AppendCall call;
  if (!read_known(read_append, args, validated, &call)) return false;
  const py::gil_scoped_release released;
  append_kv(call.params, num_threads);
  return true;
}

void merge_call(const py::object& args, int num_threads) {
  const MergeParams params = read_merge(args.ptr());
  const py::gil_scoped_release released;
  merge_states(params, num_threads);
}

void plan_call(const py::object& args, int num_threads) {
  PlanCall call = read_plan(args.ptr());
  BatchView batch;
  batch.cu_seqlens_q = call.cu_seqlens_q.as<const int32_t>(), batch.seq_lens = call.seq_lens.as<const int32_t>();
  batch.num_requests = call.seq_lens.size[0];
  if (call.words.size[0] != plan_words(batch.num_requests))
    refuse("words: expected " + std::to_string(plan_words(batch.num_requests)) + " entries, got " +
           std::to_string(call.words.size[0]));
  check_lengths(batch, INT32_MAX);
  call.facts.num_tokens = batch.cu_seqlens_q[batch.num_requests];
  call.facts.batch = batch;
  const Settings settings = chosen_settings().find(call.facts, num_threads);
  make_plan(plan_spec(call.facts, *isa, settings, num_threads, call.num_splits), batch.cu_seqlens_q, batch.seq_lens,
            batch.num_requests, call.words.as<int64_t>());
}

int64_t plan_partial_rows(const py::object& words) {
  const Tensor plan = read_tensor("words", words.ptr(), 1, ElementType::kInt64);
  if (plan.size[0] < kPlanHeaderWords) refuse("words: expected a plan, got fewer words than its header has");
  return Plan(plan.as<const int64_t>()).header().partial_rows;
}

int64_t most_rows(int64_t max_tokens, int64_t max_seq_len, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim,
                  int64_t head_dim_v, const py::object& dtype, bool invariant, int64_t num_splits, int num_threads) {
  AttentionParams facts =
      plan_facts(max_tokens, num_q_heads, num_kv_heads, head_dim, head_dim_v, read_dtype("dtype", dtype.ptr()), true);
  facts.invariant = invariant;
  return most_partial_rows(facts, *isa, chosen_settings().all(facts, num_threads), num_threads, num_splits,
                           max_seq_len);
}

// A pool or dense block as pages; `index` None takes the pages in order.
PageBlock page_block(const Tensor& block, const Tensor& index) {
  PageBlock result;
  result.data = block.as<char>();
  std::copy(block.stride, block.stride + kMaxPageDims, result.stride);
  result.pages = index.data;
  result.pages_are_64 = index.type == ElementType::kInt64;
  result.pages_stride = index.stride[0];
  return result;
}

PageShape page_shape(const Tensor& cache, int64_t count) {
  PageShape shape;
  shape.count = count;
  shape.num_dims = cache.num_dims;
  std::copy(cache.size, cache.size + kMaxPageDims, shape.size);
  shape.element_size = cache.element_size;
  return shape;
}

Tensor read_pool(const py::object& object) {
  const Tensor cache = read_pages("cache", object.ptr());
  if (cache.num_dims < 1) refuse("cache: expected at least one dimension, got none");
  return cache;
}

// A dense block of `count` pages of the pool.
Tensor read_block(const char* arg, const py::object& object, const Tensor& cache, int64_t count) {
  const Tensor block = read_tensor(arg, object.ptr(), cache.num_dims);
  if (block.element_size != cache.element_size || block.size[0] != count ||
      !std::equal(cache.size + 1, cache.size + cache.num_dims, block.size + 1))
    refuse(std::string(arg) + ": expected " + std::to_string(count) +
           " pages of the cache's shape and dtype, got others");
  return block;
}

void copy_pages_call(const py::object& cache_arg, const py::object& source_arg, const py::object& target_arg,
                     int num_threads) {
  const Tensor cache = read_pool(cache_arg);
  const Tensor source_pages = read_index("source", source_arg.ptr()),
               target_pages = read_index("target", target_arg.ptr());
  const int64_t count = source_pages.size[0];
  if (target_pages.size[0] != count)
    refuse("target: expected " + std::to_string(count) + " pages, as many as source, got " +
           std::to_string(target_pages.size[0]));
  const PageBlock source = page_block(cache, source_pages), target = page_block(cache, target_pages);
  check_page_ids("source", source, count, cache.size[0], false);
  check_page_ids("target", target, count, cache.size[0], true);
  check_disjoint("target", target, source, count);
  const py::gil_scoped_release released;
  copy_pages(page_shape(cache, count), source, target, num_threads);
}

void gather_pages_call(const py::object& cache_arg, const py::object& pages_arg, const py::object& out_arg,
                       int num_threads) {
  const Tensor cache = read_pool(cache_arg), pages = read_index("pages", pages_arg.ptr());
  const int64_t count = pages.size[0];
  const PageBlock source = page_block(cache, pages);
  const PageBlock target = page_block(read_block("out", out_arg, cache, count), Tensor{});
  check_page_ids("pages", source, count, cache.size[0], false);
  const py::gil_scoped_release released;
  copy_pages(page_shape(cache, count), source, target, num_threads);
}

void scatter_pages_call(const py::object& block_arg, const py::object& cache_arg, const py::object& pages_arg,
                        int num_threads) {
  const Tensor cache = read_pool(cache_arg), pages = read_index("pages", pages_arg.ptr());
  const int64_t count = pages.size[0];
  const PageBlock source = page_block(read_block("block", block_arg, cache, count), Tensor{});
  const PageBlock target = page_block(cache, pages);
  check_page_ids("pages", target, count, cache.size[0], true);
  const py::gil_scoped_release released;
  copy_pages(page_shape(cache, count), source, target, num_threads);
}

}  // namespace
}  // namespace chunkattn

PYBIND11_MODULE(_native, m) {
  using namespace chunkattn;
  m.doc() = "The native core of chunkattn. Private: use the functions of the package, which validate.";
  load_torch();
  m.def("isas", [] {
    py::list names;
    for (const char* name : {"avx512bf16", "avx512fma", "avx512", "avx2", "portable"})
      if (isa_table(name)) names.append(name);
    return names;
  });
  m.def("select_isa", &select_isa);
  m.def("isa", [] { return std::string(isa->name); });
  m.def("plan", &plan_call);
  m.def("plan_partial_rows", &plan_partial_rows);
  m.def("max_partial_rows", &most_rows);
  m.def("attention", &attention_call);
  m.def("append_kv", &append_call);
  m.def("merge_states", &merge_call);
  m.def("copy_pages", &copy_pages_call);
  m.def("gather_pages", &gather_pages_call);
  m.def("scatter_pages", &scatter_pages_call);
  m.def("read_through_attributes", &read_through_attributes);
  define_settings(m);
  define_launchers(m);
  select_isa("");
}
