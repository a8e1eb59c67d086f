// How work is cut and spread: whatever of a call may be chosen by measurement. Results differ in rounding at most, in
// invariant mode in nothing.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "chunkattn/core/params.h"

namespace chunkattn {

struct Settings {
  int64_t threads = 0;           // at most so many; 0 = all
  int64_t decode_rows = 8;       // most packed rows of a KV head that are a decode
  int64_t items_per_worker = 4;  // wanted before splitting stops
  int64_t min_split = 256;       // keys; no shorter split than this
  int64_t tile_kib = 600;        // most memory of a prefill item's queries and sums
  int64_t tile_share = 8;        // prefill items wanted per thread before items grow
};

// A setting by name, and what it may be: least to most, a multiple of unit.
struct SettingField {
  const char* name;
  int64_t Settings::* value;
  int64_t least, most, unit;
};

constexpr int64_t kMostDecodeRows = 16;  // that the decode kernel takes
constexpr SettingField kSettingFields[] = {
    {"threads", &Settings::threads, 0, 1024, 1},
    {"decode_rows", &Settings::decode_rows, 1, kMostDecodeRows, 1},
    {"items_per_worker", &Settings::items_per_worker, 1, 64, 1},
    {"min_split", &Settings::min_split, 128, 1 << 20, 128},
    {"tile_kib", &Settings::tile_kib, 16, 1 << 14, 1},
    {"tile_share", &Settings::tile_share, 1, 256, 1},
};

// Batches that behave alike: which classes of requests they hold, and whether a thread's share takes more than about a
// millisecond of arithmetic.
constexpr const char* kMixNames[] = {"decode-small",  "decode-large", "prefill-small",
                                     "prefill-large", "mixed-small",  "mixed-large"};
constexpr int64_t kNumMixes = sizeof(kMixNames) / sizeof(*kMixNames);

// Index in kMixNames. Reads cu_seqlens_q and seq_lens, which need not have been checked.
int64_t mix_of(const AttentionParams& params, int num_threads);

// Pages behave alike up to the next power of two, and from 256 tokens on.
int64_t page_class_of(int64_t page_size);

// What chosen settings hold for: threads, dtype, head dims, group, KV dtype, page class, mix.
using SettingsKey = std::array<int64_t, 8>;

// Settings of a process. Holding the GIL guards it.
class SettingsTable {
 public:
  void install(std::vector<std::pair<SettingsKey, Settings>> entries);
  // Whatever the call is, until nullopt is given.
  void force(std::optional<Settings> settings) { forced_ = settings; }
  Settings find(const AttentionParams& params, int num_threads) const;
  // The default, and all that calls of these dtypes, head dims and group may find.
  std::vector<Settings> all(const AttentionParams& params, int num_threads) const;

 private:
  std::vector<std::pair<SettingsKey, Settings>> entries_;  // sorted by key
  std::optional<Settings> forced_;
};

}  // namespace chunkattn
