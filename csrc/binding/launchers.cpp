#include "launchers.h"

#include <algorithm>
#include <string>

#include "arguments.h"
#include "kernels/launch.h"

namespace chunkattn {
namespace {

// The address of a launcher, as ctypes found it in a library whose chunkattn_abi() was compared.
template <typename Launcher>
Launcher launcher_at(uintptr_t address) {
  return reinterpret_cast<Launcher>(address);
}

// Reads arguments that may be on a GPU. Only reading happens under the flag: a launch gives the GIL away.
template <typename Function>
auto read(const Function& function) {
  const DeviceTensors accepted;
  return function();
}

LaunchContext context_of(uintptr_t stream, int num_sms) {
  LaunchContext context;
  context.stream = reinterpret_cast<void*>(stream);
  context.num_sms = num_sms;
  return context;
}

PlanSpec spec_of(const py::tuple& fields) {
  if (static_cast<int64_t>(fields.size()) != kPlanSpecWords)
    throw py::value_error("spec: expected the " + std::to_string(kPlanSpecWords) + " fields of a WorkSpec, got " +
                          std::to_string(fields.size()));
  int64_t words[kPlanSpecWords];
  for (int64_t i = 0; i < kPlanSpecWords; ++i) words[i] = fields[i].cast<int64_t>();
  PlanSpec spec;
  std::copy(words, words + kPlanSpecWords, reinterpret_cast<int64_t*>(&spec));
  return spec;
}

int32_t launch_attention(uintptr_t launcher, const py::object& args, const py::tuple& spec, uintptr_t stream,
                         int num_sms) {
  const AttentionCall call = read([&] { return read_attention(args.ptr(), nullptr); });
  PlannedStep step;
  step.spec = spec_of(spec);
  step.plan = call.plan, step.plan_words = call.plan_words;
  step.workspace = call.workspace, step.workspace_bytes = call.workspace_bytes;
  const LaunchContext context = context_of(stream, num_sms);
  const py::gil_scoped_release released;
  return launcher_at<AttentionLauncher>(launcher)(&call.params, &step, &context);
}

int32_t launch_plan(uintptr_t launcher, const py::object& args, const py::tuple& spec, uintptr_t stream, int num_sms) {
  const PlanCall call = read([&] { return read_plan(args.ptr()); });
  PlanParams p;
  p.spec = spec_of(spec);
  p.cu_seqlens_q = call.cu_seqlens_q.as<const int32_t>(), p.seq_lens = call.seq_lens.as<const int32_t>();
  p.num_requests = call.seq_lens.size[0];
  p.words = call.words.as<int64_t>();
  if (call.words.size[0] != plan_words(p.num_requests))
    throw py::value_error("words: expected " + std::to_string(plan_words(p.num_requests)) + " entries, got " +
                          std::to_string(call.words.size[0]));
  const LaunchContext context = context_of(stream, num_sms);
  const py::gil_scoped_release released;
  return launcher_at<PlanLauncher>(launcher)(&p, &context);
}

int32_t launch_append_kv(uintptr_t launcher, const py::object& args, uintptr_t stream, int num_sms) {
  const AppendParams params = read([&] { return read_append(args.ptr(), nullptr).params; });
  const LaunchContext context = context_of(stream, num_sms);
  const py::gil_scoped_release released;
  return launcher_at<AppendLauncher>(launcher)(&params, &context);
}

int32_t launch_merge_states(uintptr_t launcher, const py::object& args, uintptr_t stream, int num_sms) {
  const MergeParams params = read([&] { return read_merge(args.ptr()); });
  const LaunchContext context = context_of(stream, num_sms);
  const py::gil_scoped_release released;
  return launcher_at<MergeLauncher>(launcher)(&params, &context);
}

PageView page_view(const Tensor& block, const Tensor& ids) {
  PageView view;
  view.data = block.as<char>();
  std::copy(block.stride, block.stride + kMaxTensorDims, view.stride);
  view.num_pages = block.size[0];
  view.pages = ids.data;
  view.pages_are_64 = ids.type == ElementType::kInt64;
  view.pages_stride = ids.stride[0];
  return view;
}

PageParams read_page_move(const py::object& source, const py::object& source_ids, const py::object& target,
                          const py::object& target_ids) {
  const Tensor from = read_pages("cache", source.ptr()), to = read_tensor("target", target.ptr(), from.num_dims);
  const Tensor from_ids = read_any_index("source_ids", source_ids), to_ids = read_any_index("target_ids", target_ids);
  PageParams p;
  p.source = page_view(from, from_ids), p.target = page_view(to, to_ids);
  p.count = from_ids.given ? from_ids.size[0] : from.size[0];
  std::copy(from.size, from.size + kMaxTensorDims, p.size);
  p.num_dims = from.num_dims, p.element_size = from.element_size;
  return p;
}

// Moves pages `source_ids` of `source` to pages `target_ids` of `target`; None takes the pages in order.
int32_t launch_pages(uintptr_t launcher, const py::object& source, const py::object& source_ids,
                     const py::object& target, const py::object& target_ids, uintptr_t stream, int num_sms) {
  const PageParams p = read([&] { return read_page_move(source, source_ids, target, target_ids); });
  const LaunchContext context = context_of(stream, num_sms);
  const py::gil_scoped_release released;
  return launcher_at<PageLauncher>(launcher)(&p, &context);
}

int64_t attention_workspace_bytes(const py::tuple& spec, int64_t max_tokens, int64_t max_kv_len, int64_t head_dim_v) {
  return workspace_layout(spec_of(spec), max_tokens, max_kv_len, head_dim_v).bytes();
}

}  // namespace

void define_launchers(py::module_& m) {
  m.def("launch_abi", &launch_abi);
  m.def("launch_attention", &launch_attention);
  m.def("launch_plan", &launch_plan);
  m.def("launch_append_kv", &launch_append_kv);
  m.def("launch_merge_states", &launch_merge_states);
  m.def("launch_pages", &launch_pages);
  m.def("attention_workspace_bytes", &attention_workspace_bytes);
}

}  // namespace chunkattn
