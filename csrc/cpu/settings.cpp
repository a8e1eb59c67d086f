#include "settings.h"

#include <algorithm>

namespace chunkattn {
namespace {

constexpr int64_t kDecodeBorder = 8;     // packed rows; of the classes, whatever the settings say
constexpr double kReadCost = 16;         // multiply-adds in the time that an element takes from memory
constexpr double kLargeShare = 1 << 27;  // multiply-adds of a thread

SettingsKey problem_of(const AttentionParams& p, int num_threads) {
  const auto dtype = static_cast<int64_t>(p.dtype), kv_dtype = static_cast<int64_t>(p.k.dtype);
  return {num_threads, dtype, p.head_dim, p.head_dim_v, p.group(), kv_dtype, 0, 0};
}

}  // namespace

int64_t mix_of(const AttentionParams& p, int num_threads) {
  bool decodes = false, prefills = false;
  double rows = 0;  // times keys: of query heads, or of KV heads where reading them takes longest
  for (int64_t i = 0; i < p.batch.num_requests; ++i) {
    const int64_t q_len = static_cast<int64_t>(p.batch.cu_seqlens_q[i + 1]) - p.batch.cu_seqlens_q[i];
    if (q_len <= 0) continue;
    const bool is_decode = q_len * p.group() <= kDecodeBorder;
    (is_decode ? decodes : prefills) = true;
    const double per_key = is_decode ? kReadCost * p.num_kv_heads : static_cast<double>(q_len) * p.num_q_heads;
    rows += per_key * p.batch.seq_lens[i];
  }
  const double share = rows * (p.head_dim + p.head_dim_v) / num_threads;
  return 2 * (prefills ? 1 + decodes : 0) + (share >= kLargeShare);
}

int64_t page_class_of(int64_t page_size) {
  int64_t found = 1;
  while (2 * found <= page_size && found < 256) found *= 2;
  return found;
}

void SettingsTable::install(std::vector<std::pair<SettingsKey, Settings>> entries) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  entries_ = std::move(entries);
}

Settings SettingsTable::find(const AttentionParams& p, int num_threads) const {
  if (forced_) return *forced_;
  if (entries_.empty()) return {};
  SettingsKey key = problem_of(p, num_threads);
  key[6] = page_class_of(p.page_size), key[7] = mix_of(p, num_threads);
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), key,
                                      [](const auto& entry, const SettingsKey& k) { return entry.first < k; });
  return found != entries_.end() && found->first == key ? found->second : Settings{};
}

std::vector<Settings> SettingsTable::all(const AttentionParams& p, int num_threads) const {
  std::vector<Settings> found = {Settings{}};
  if (forced_) found.push_back(*forced_);
  const SettingsKey key = problem_of(p, num_threads);
  for (const auto& [candidate, settings] : entries_)
    if (std::equal(key.begin(), key.begin() + 5, candidate.begin())) found.push_back(settings);
  return found;
}

}  // namespace chunkattn
