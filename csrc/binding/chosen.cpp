#include "chosen.h"

#include <algorithm>
#include <string>

#include "arguments.h"
#include "checks.h"

namespace chunkattn {
namespace {

py::dict to_dict(const Settings& settings) {
  py::dict values;
  for (const SettingField& field : kSettingFields) values[field.name] = settings.*field.value;
  return values;
}

Settings read_settings(const py::dict& values) {
  Settings settings;
  for (const auto& [key, value] : values) {
    const auto name = key.cast<std::string>();
    const auto* const end = std::end(kSettingFields);
    const auto* const field =
        std::find_if(std::begin(kSettingFields), end, [&](const auto& known) { return name == known.name; });
    if (field == end) refuse("values: expected the names of default_settings(), got " + name);
    const auto number = value.cast<int64_t>();
    if (number < field->least || number > field->most || number % field->unit)
      refuse("values: expected " + name + " from " + std::to_string(field->least) + " to " +
             std::to_string(field->most) + " in steps of " + std::to_string(field->unit) + ", got " +
             std::to_string(number));
    settings.*field->value = number;
  }
  return settings;
}

int64_t mix_number(const std::string& name) {
  for (int64_t i = 0; i < kNumMixes; ++i)
    if (name == kMixNames[i]) return i;
  refuse("mix_class: expected one of mix_class(), got " + name);
  return 0;
}

// Entries (threads, dtype, head_dim, head_dim_v, group, kv_dtype, page_class, mix_class, values).
void install(const py::list& entries) {
  std::vector<std::pair<SettingsKey, Settings>> found;
  for (const auto& entry : entries) {
    const auto row = entry.cast<py::tuple>();
    if (row.size() != 9) refuse("entries: expected tuples of 9, got one of " + std::to_string(row.size()));
    const auto integer = [&](size_t i) { return row[i].cast<int64_t>(); };
    const auto dtype = static_cast<int64_t>(read_dtype("dtype", row[1].ptr()));
    const auto kv_dtype = static_cast<int64_t>(read_kv_dtype("kv_dtype", row[5].ptr()));
    const SettingsKey key = {integer(0), dtype,    integer(2), integer(3),
                             integer(4), kv_dtype, integer(6), mix_number(row[7].cast<std::string>())};
    found.emplace_back(key, read_settings(row[8].cast<py::dict>()));
  }
  chosen_settings().install(std::move(found));
}

void force(const py::object& values) {
  chosen_settings().force(values.is_none() ? std::nullopt : std::optional(read_settings(values.cast<py::dict>())));
}

std::string mix_class(const py::object& cu_seqlens_q, const py::object& seq_lens, int64_t num_q_heads,
                      int64_t num_kv_heads, int64_t head_dim, int64_t head_dim_v, int num_threads) {
  const Tensor starts = read_tensor("cu_seqlens_q", cu_seqlens_q.ptr(), 1, ElementType::kInt32);
  const Tensor lens = read_tensor("seq_lens", seq_lens.ptr(), 1, ElementType::kInt32);
  if (starts.size[0] != lens.size[0] + 1) refuse("cu_seqlens_q: expected one entry more than seq_lens");
  AttentionParams facts = plan_facts(0, num_q_heads, num_kv_heads, head_dim, head_dim_v, DType::kF32, true);
  facts.batch.cu_seqlens_q = starts.as<const int32_t>(), facts.batch.seq_lens = lens.as<const int32_t>();
  facts.batch.num_requests = lens.size[0];
  return kMixNames[mix_of(facts, num_threads)];
}

}  // namespace

SettingsTable& chosen_settings() {
  static SettingsTable table;
  return table;
}

void define_settings(py::module_& m) {
  m.def("default_settings", [] { return to_dict(Settings{}); });
  m.def("check_settings", [](const py::dict& values) { return to_dict(read_settings(values)); });
  m.def("install_settings", &install);
  m.def("force_settings", &force);
  m.def("mix_class", &mix_class);
  m.def("page_class", &page_class_of);
  m.def("kernel_hash", [] { return std::string(CHUNKATTN_KERNEL_HASH); });
}

}  // namespace chunkattn
