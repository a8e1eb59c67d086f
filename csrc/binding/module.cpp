// The Python module chunkattn._native: Python objects to parameter structs, and nothing else.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>

#include "append_kv.h"
#include "arguments.h"
#include "attention.h"
#include "check.h"
#include "merge_states.h"
#include "pages.h"

namespace chunkattn {
namespace {

const IsaTable* isa = nullptr;

void select_isa(const std::string& name) {
  const IsaTable* found = name.empty() ? best_isa() : find_isa(name.c_str());
  if (!found) refuse("isa: expected one that this processor has, got '" + name + "'");
  isa = found;
}

PlanSpec spec_of(const AttentionCall& call, int num_threads) {
  const AttentionParams& p = call.params;
  PlanSpec spec = default_plan_spec();
  spec.num_q_heads = p.num_q_heads, spec.num_kv_heads = p.num_kv_heads;
  spec.causal = p.causal, spec.window_left = p.window_left, spec.window_right = p.window_right;
  spec.invariant = p.invariant, spec.num_splits = call.num_splits;
  spec.num_workers = num_threads;
  spec.decode_heads = p.k.stride_head <= p.k.stride_slot ? p.num_kv_heads : 1;
  return spec;
}

void attention_call(const py::object& args, int num_threads) {
  const AttentionCall call = read_attention(args.ptr());
  const PlanSpec spec = spec_of(call, num_threads);
  const py::gil_scoped_release released;
  attention(call.params, spec, call.plan, call.plan_words, call.workspace, call.workspace_bytes, num_threads, *isa);
}

void append_call(const py::object& args, int num_threads) {
  const AppendParams params = read_append(args.ptr());
  const py::gil_scoped_release released;
  append_kv(params, num_threads);
}

void merge_call(const py::object& args, int num_threads) {
  const MergeParams params = read_merge(args.ptr());
  const py::gil_scoped_release released;
  merge_states(params, num_threads);
}

void plan_call(const py::object& cu_seqlens_q, const py::object& seq_lens, const py::object& words, int64_t num_q_heads,
               int64_t num_kv_heads, bool causal, int64_t window_left, int64_t window_right, bool invariant,
               int64_t num_splits, bool nhd, int num_threads) {
  const Tensor cu = read_tensor("cu_seqlens_q", cu_seqlens_q.ptr(), 1, ElementType::kInt32);
  const Tensor lens = read_tensor("seq_lens", seq_lens.ptr(), 1, ElementType::kInt32);
  const Tensor plan = read_tensor("words", words.ptr(), 1, ElementType::kInt64);
  BatchView batch;
  batch.cu_seqlens_q = cu.as<const int32_t>(), batch.seq_lens = lens.as<const int32_t>();
  batch.num_requests = lens.size[0];
  if (plan.size[0] != plan_words(batch.num_requests))
    refuse("words: expected " + std::to_string(plan_words(batch.num_requests)) + " entries, got " +
           std::to_string(plan.size[0]));
  check_lengths(batch, INT32_MAX);
  PlanSpec spec = default_plan_spec();
  spec.num_q_heads = num_q_heads, spec.num_kv_heads = num_kv_heads;
  spec.causal = causal, spec.window_left = window_left, spec.window_right = window_right;
  spec.invariant = invariant, spec.num_splits = num_splits;
  spec.num_workers = num_threads;
  spec.decode_heads = nhd ? num_kv_heads : 1;
  make_plan(spec, batch.cu_seqlens_q, batch.seq_lens, batch.num_requests, plan.as<int64_t>());
}

int64_t plan_partial_rows(const py::object& words) {
  const Tensor plan = read_tensor("words", words.ptr(), 1, ElementType::kInt64);
  if (plan.size[0] < kPlanHeaderWords) refuse("words: expected a plan, got fewer words than its header has");
  return Plan(plan.as<const int64_t>()).header().partial_rows;
}

py::dict work_defaults() {
  const PlanSpec spec = default_plan_spec();
  py::dict facts;
  facts["items_per_worker"] = spec.items_per_worker;
  facts["tile_rows"] = spec.tile_rows;
  facts["decode_rows"] = spec.decode_rows;
  facts["kv_tile"] = spec.kv_tile;
  facts["min_split"] = spec.min_split;
  facts["invariant_split"] = spec.invariant_split;
  return facts;
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
  if (!cache.element_size) throw py::type_error("cache: expected a dtype that a KV cache can have, got another");
  return shape;
}

void copy_pages_call(const py::object& cache_arg, const py::object& source_arg, const py::object& target_arg,
                     int num_threads) {
  const Tensor cache = read_tensor("cache", cache_arg.ptr(), -1);
  const Tensor source_pages = read_tensor("source", source_arg.ptr(), 1);
  const Tensor target_pages = read_tensor("target", target_arg.ptr(), 1);
  const int64_t count = source_pages.size[0];
  const PageBlock source = page_block(cache, source_pages), target = page_block(cache, target_pages);
  check_page_ids("source", source, count, cache.size[0], false);
  check_page_ids("target", target, count, cache.size[0], true);
  check_disjoint("target", target, source, count);
  const PageShape shape = page_shape(cache, count);
  const py::gil_scoped_release released;
  copy_pages(shape, source, target, num_threads);
}

void gather_pages_call(const py::object& cache_arg, const py::object& pages_arg, const py::object& out_arg,
                       int num_threads) {
  const Tensor cache = read_tensor("cache", cache_arg.ptr(), -1);
  const Tensor pages = read_tensor("pages", pages_arg.ptr(), 1);
  const Tensor out = read_tensor("out", out_arg.ptr(), cache.num_dims);
  const PageBlock source = page_block(cache, pages), target = page_block(out, Tensor{});
  check_page_ids("pages", source, pages.size[0], cache.size[0], false);
  const PageShape shape = page_shape(cache, pages.size[0]);
  const py::gil_scoped_release released;
  copy_pages(shape, source, target, num_threads);
}

void scatter_pages_call(const py::object& block_arg, const py::object& cache_arg, const py::object& pages_arg,
                        int num_threads) {
  const Tensor cache = read_tensor("cache", cache_arg.ptr(), -1);
  const Tensor pages = read_tensor("pages", pages_arg.ptr(), 1);
  const Tensor block = read_tensor("block", block_arg.ptr(), cache.num_dims);
  const PageBlock source = page_block(block, Tensor{}), target = page_block(cache, pages);
  check_page_ids("pages", target, pages.size[0], cache.size[0], true);
  const PageShape shape = page_shape(cache, pages.size[0]);
  const py::gil_scoped_release released;
  copy_pages(shape, source, target, num_threads);
}

}  // namespace
}  // namespace chunkattn

PYBIND11_MODULE(_native, m) {
  using namespace chunkattn;
  m.doc() = "The native core of chunkattn. Private: use the functions of the package, which validate.";
  load_dtypes();
  m.def("isas", [] {
    py::list names;
    for (const char* name : {"avx512bf16", "avx512", "avx2", "portable"})
      if (find_isa(name)) names.append(name);
    return names;
  });
  m.def("select_isa", &select_isa);
  m.def("isa", [] { return std::string(isa->name); });
  m.def("work_defaults", &work_defaults);
  m.def("plan", &plan_call);
  m.def("plan_partial_rows", &plan_partial_rows);
  m.def("attention", &attention_call);
  m.def("append_kv", &append_call);
  m.def("merge_states", &merge_call);
  m.def("copy_pages", &copy_pages_call);
  m.def("gather_pages", &gather_pages_call);
  m.def("scatter_pages", &scatter_pages_call);
  select_isa("");
}
