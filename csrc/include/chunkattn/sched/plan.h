// How a step is cut into work items. The same algorithm stands in chunkattn/planning/work.py; tests compare the two.
//
// Two classes of requests: "decode" (at most decode_rows packed query rows a KV head) and "prefill" (more).
// Items are never written out: the plan keeps prefix sums over requests, and an item number is turned into its
// parts by a binary search. Cost O(B); no item list, no host value that changes from step to step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "chunkattn/core/host_device.h"
#include "chunkattn/sched/work_item.h"

namespace chunkattn {

// What the plan depends on besides the lengths; stored in its header and compared at run.
struct PlanSpec {
  int64_t num_q_heads = 1, num_kv_heads = 1;
  int64_t causal = 1, window_left = -1, window_right = -1;
  int64_t invariant = 0;
  int64_t num_splits = 0;        // 0 = planned
  int64_t num_workers = 1;       // cores, or SMs x CTAs per SM
  int64_t items_per_worker = 4;  // work items wanted per worker before splitting stops
  int64_t tile_rows = 384;       // packed rows of a prefill item
  int64_t decode_rows = 8;       // most packed rows of a decode request
  int64_t decode_heads = 1;      // KV heads one decode item spans
  int64_t kv_tile = 128;         // split boundaries are multiples of it
  int64_t min_split = 256;       // no shorter split than this
  int64_t invariant_split = 2048;
  int64_t decode_cost = 0;  // of a key of a decode item, in 1/256 of a key of a full prefill tile; 0 = classes apart
  int64_t split_cost = 0;   // of starting an item and joining its partial state, in keys

  CHUNKATTN_HOST_DEVICE int64_t group() const { return num_q_heads / num_kv_heads; }
};

constexpr int64_t kPlanSpecWords = sizeof(PlanSpec) / sizeof(int64_t);
constexpr int64_t kPlanMagic = 0x6368756e6b617474;  // "chunkatt"

struct PlanHeader {
  int64_t magic, num_requests, num_tokens;
  int64_t decode_total, prefill_total;  // items
  int64_t partial_rows;                 // rows of partial states that split items leave
  int64_t lengths_checksum;             // of cu_seqlens_q and seq_lens
  int64_t tables_checksum;              // of the arrays behind the header
  PlanSpec spec;
};
constexpr int64_t kPlanHeaderWords = sizeof(PlanHeader) / sizeof(int64_t);

// Words of a plan for B requests: header, decode_items[B+1], prefill_items[B+1], partial_base[B+1], split_len[B].
CHUNKATTN_HOST_DEVICE constexpr int64_t plan_words(int64_t num_requests) {
  return kPlanHeaderWords + 4 * num_requests + 3;
}

CHUNKATTN_HOST_DEVICE inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }
CHUNKATTN_HOST_DEVICE inline int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }
CHUNKATTN_HOST_DEVICE inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
CHUNKATTN_HOST_DEVICE inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Sum over (index, word) of a mixed word, so that any number of threads can add up their parts in any order.
// The mix is the finaliser of splitmix64, which spreads every bit of its input over all of its output.
CHUNKATTN_HOST_DEVICE inline uint64_t checksum_term(uint64_t index, int64_t word) {
  uint64_t x = static_cast<uint64_t>(word) + (index + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

CHUNKATTN_HOST_DEVICE inline uint64_t checksum(uint64_t seed, const int64_t* words, int64_t count) {
  for (int64_t i = 0; i < count; ++i) seed += checksum_term(i, words[i]);
  return seed;
}

// First key that any row of the request can see.
CHUNKATTN_HOST_DEVICE inline int64_t first_visible_key(const PlanSpec& spec, int64_t q_len, int64_t kv_len) {
  if (spec.window_left < 0 || kv_len - q_len <= spec.window_left) return 0;
  return smaller_of(kv_len - q_len - spec.window_left, kv_len);
}

// Where the first split of the request begins. Invariant splits lie at absolute multiples of their length.
CHUNKATTN_HOST_DEVICE inline int64_t split_origin(const PlanSpec& spec, int64_t q_len, int64_t kv_len) {
  const int64_t unit = spec.invariant ? spec.invariant_split : spec.kv_tile;
  return first_visible_key(spec, q_len, kv_len) / unit * unit;
}

class Plan {
 public:
  CHUNKATTN_HOST_DEVICE explicit Plan(const int64_t* words) : header_(reinterpret_cast<const PlanHeader*>(words)) {
    const int64_t n = header_->num_requests + 1;
    decode_items_ = words + kPlanHeaderWords;
    prefill_items_ = decode_items_ + n;
    partial_base_ = prefill_items_ + n;
    split_len_ = partial_base_ + n;
  }

  CHUNKATTN_HOST_DEVICE const PlanHeader& header() const { return *header_; }
  CHUNKATTN_HOST_DEVICE const PlanSpec& spec() const { return header_->spec; }

  CHUNKATTN_HOST_DEVICE WorkItem decode_item(int64_t number, const int32_t* cu_seqlens_q,
                                             const int32_t* seq_lens) const {
    int64_t rest;
    WorkItem item = start(decode_items_, number, cu_seqlens_q, seq_lens, &rest);
    item.is_decode = true;
    const int64_t heads = spec().decode_heads;
    split(item, rest % item.num_splits, number, cu_seqlens_q, seq_lens);
    item.kv_head_begin = rest / item.num_splits * heads;
    item.kv_head_end = smaller_of(item.kv_head_begin + heads, spec().num_kv_heads);
    item.row_begin = 0;
    return item;
  }

  // Row tiles run from the last to the first: under a causal mask the last rows see most keys.
  CHUNKATTN_HOST_DEVICE WorkItem prefill_item(int64_t number, const int32_t* cu_seqlens_q,
                                              const int32_t* seq_lens) const {
    int64_t rest;
    WorkItem item = start(prefill_items_, number, cu_seqlens_q, seq_lens, &rest);
    const int64_t tiles = ceil_div(item.row_end, spec().tile_rows);
    split(item, rest % item.num_splits, header_->decode_total + number, cu_seqlens_q, seq_lens);
    rest /= item.num_splits;
    item.kv_head_begin = rest / tiles;
    item.kv_head_end = item.kv_head_begin + 1;
    item.row_begin = (tiles - 1 - rest % tiles) * spec().tile_rows;
    item.row_end = smaller_of(item.row_begin + spec().tile_rows, item.row_end);
    return item;
  }

 private:
  // The request whose items include the one of this number: the last one that begins at or before it.
  CHUNKATTN_HOST_DEVICE static int64_t owner(const int64_t* items, int64_t num_requests, int64_t number) {
    int64_t low = 0, high = num_requests;  // items[low] <= number < items[high]
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (items[middle] <= number) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  CHUNKATTN_HOST_DEVICE WorkItem start(const int64_t* items, int64_t number, const int32_t* cu_seqlens_q,
                                       const int32_t* seq_lens, int64_t* rest) const {
    const int64_t n = header_->num_requests;
    WorkItem item;
    item.request = owner(items, n, number);
    *rest = number - items[item.request];
    const int64_t q_len = cu_seqlens_q[item.request + 1] - cu_seqlens_q[item.request];
    const int64_t kv_len = seq_lens[item.request];
    item.row_end = q_len * spec().group();
    const int64_t length = split_len_[item.request];
    const int64_t span = kv_len - split_origin(spec(), q_len, kv_len);
    item.num_splits = length ? larger_of(1, ceil_div(span, length)) : 1;
    item.partial_base = partial_base_[item.request];
    return item;
  }

  CHUNKATTN_HOST_DEVICE void split(WorkItem& item, int64_t split, int64_t arrival, const int32_t* cu_seqlens_q,
                                   const int32_t* seq_lens) const {
    const int64_t q_len = cu_seqlens_q[item.request + 1] - cu_seqlens_q[item.request];
    const int64_t kv_len = seq_lens[item.request];
    const int64_t origin = split_origin(spec(), q_len, kv_len);
    const int64_t length = split_len_[item.request];
    item.split = split;
    item.arrival = arrival - split;
    item.kv_begin = item.num_splits > 1 ? origin + split * length : origin;
    item.kv_end = item.num_splits > 1 ? smaller_of(item.kv_begin + length, kv_len) : kv_len;
  }

  const PlanHeader* header_;
  const int64_t *decode_items_, *prefill_items_, *partial_base_, *split_len_;
};

// Of the words cu_seqlens_q[1], seq_lens[0], cu_seqlens_q[2], seq_lens[1], …
inline int64_t lengths_checksum(const int32_t* cu_seqlens_q, const int32_t* seq_lens, int64_t num_requests) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < num_requests; ++i)
    sum += checksum_term(2 * i, cu_seqlens_q[i + 1]) + checksum_term(2 * i + 1, seq_lens[i]);
  return static_cast<int64_t>(sum);
}

// Most keys of a request that one of its row tiles sees, where the classes share the launch.
CHUNKATTN_HOST_DEVICE inline int64_t tile_keys(const PlanSpec& spec, int64_t span) {
  if (spec.decode_cost == 0 || spec.window_left < 0 || !(spec.causal || spec.window_right >= 0)) return span;
  const int64_t right = spec.causal ? 0 : spec.window_right;
  return smaller_of(span, spec.window_left + right + ceil_div(spec.tile_rows, spec.group()) + 1);
}

CHUNKATTN_HOST_DEVICE inline int64_t split_length(const PlanSpec& spec, int64_t keys) {
  return larger_of(round_up(keys, spec.kv_tile), spec.min_split);
}

// Items that a worker's share of keys is best cut into: floor(sqrt(keys / (2 * split_cost))), 1 to `most`.
CHUNKATTN_HOST_DEVICE inline int64_t items_of_share(const PlanSpec& spec, int64_t keys, int64_t most) {
  int64_t count = 1;
  while (count < most && 2 * spec.split_cost * (count + 1) * (count + 1) <= keys) ++count;
  return count;
}

// What a step holds if nothing is split: items, and the keys that all of them walk.
struct StepWork {
  int64_t decode_units = 0, decode_keys = 0;
  int64_t prefill_units = 0, prefill_keys = 0;
  int64_t longest = 0;  // keys of the longest prefill item
};

struct SplitLengths {
  int64_t decode, prefill;  // 0: not split
};

// Classes that share the launch: chunkattn/planning/work.py says why.
CHUNKATTN_HOST_DEVICE inline SplitLengths shared_lengths(const PlanSpec& spec, const StepWork& work) {
  constexpr int64_t kMostWaveSplits = 16;
  const int64_t workers = spec.num_workers, cost = spec.decode_cost;
  const int64_t total = 256 * work.prefill_keys + cost * work.decode_keys;
  const int64_t fair_prefill = ceil_div(total, 256 * workers), fair_decode = ceil_div(total, cost * workers);
  const int64_t per_worker = items_of_share(spec, fair_prefill, spec.items_per_worker);
  int64_t prefill = ceil_div(fair_prefill, per_worker);
  // Estimated ends: a share, half an item that somebody waits for, what the splits cost; or whole waves.
  int64_t best = fair_prefill + prefill / 2 + per_worker * spec.split_cost;
  if (20 * cost * work.decode_keys <= total) {
    const int64_t serial = ceil_div(2 * cost * work.decode_keys, 256 * workers);
    for (int64_t splits = 1; splits <= kMostWaveSplits; ++splits) {
      const int64_t keys = ceil_div(work.longest, splits) + (splits > 1 ? spec.split_cost : 0);
      const int64_t end = ceil_div(work.prefill_units * splits, workers) * keys + serial;
      if (end <= best) {
        best = end;
        prefill = splits == 1 ? 0 : ceil_div(work.longest, splits);
      }
    }
  }
  if (prefill > 0) {
    const int64_t most = ceil_div(fair_prefill, spec.items_per_worker);  // keeps the splits within their bound
    prefill = split_length(spec, larger_of(prefill, most));
  }
  // Decodes' partial states are small, so theirs may be twice as many.
  const int64_t decode_items = items_of_share(spec, fair_decode, 2 * spec.items_per_worker);
  return {split_length(spec, ceil_div(fair_decode, decode_items)), prefill};
}

CHUNKATTN_HOST_DEVICE inline SplitLengths choose_splits(const PlanSpec& spec, const StepWork& work) {
  const int64_t wanted = spec.num_workers * spec.items_per_worker;
  // Invariant splits exist for the arithmetic whether or not they run apart: they do where decodes leave workers idle.
  if (spec.invariant) return {work.decode_units < wanted ? spec.invariant_split : 0, 0};
  if (spec.decode_cost > 0) return shared_lengths(spec, work);
  return {split_length(spec, ceil_div(work.decode_keys, wanted)),
          work.prefill_units >= wanted ? 0 : split_length(spec, ceil_div(work.prefill_keys, wanted))};
}

// Length of a request's splits, 0 if it is not split.
CHUNKATTN_HOST_DEVICE inline int64_t request_split(const PlanSpec& spec, const SplitLengths& chosen, bool is_decode,
                                                   int64_t span) {
  int64_t length = is_decode ? chosen.decode : chosen.prefill;
  if (spec.num_splits > 0) {
    length = larger_of(round_up(ceil_div(span, spec.num_splits), spec.kv_tile), spec.kv_tile);
  } else if (!is_decode && tile_keys(spec, span) < span) {
    length = 0;  // its tiles see a band of the keys; most splits would be empty
  }
  if (span <= length) return 0;
  // Splits of one length, but for rounding.
  if (length && spec.decode_cost > 0 && !spec.invariant)
    length = round_up(ceil_div(span, ceil_div(span, length)), spec.kv_tile);
  return length;
}

// Adds what one request holds if it is not split.
CHUNKATTN_HOST_DEVICE inline void add_request(const PlanSpec& spec, int64_t q_len, int64_t kv_len, StepWork* work) {
  const int64_t rows = q_len * spec.group();
  if (rows == 0) return;
  const int64_t span = kv_len - split_origin(spec, q_len, kv_len);
  if (rows <= spec.decode_rows) {
    const int64_t head_groups = ceil_div(spec.num_kv_heads, spec.decode_heads);
    work->decode_units += head_groups;
    work->decode_keys += head_groups * span;
  } else {
    const int64_t units = ceil_div(rows, spec.tile_rows) * spec.num_kv_heads;
    work->prefill_units += units;
    work->prefill_keys += units * tile_keys(spec, span);
    work->longest = larger_of(work->longest, tile_keys(spec, span));
  }
}

// What one request adds to the tables.
struct RequestShare {
  int64_t decode_items, prefill_items, partial_rows, split_len;
};

CHUNKATTN_HOST_DEVICE inline RequestShare request_share(const PlanSpec& spec, const SplitLengths& chosen, int64_t q_len,
                                                        int64_t kv_len) {
  const int64_t rows = q_len * spec.group();
  const bool is_decode = rows > 0 && rows <= spec.decode_rows;
  const int64_t span = kv_len - split_origin(spec, q_len, kv_len);
  const int64_t length = rows == 0 ? 0 : request_split(spec, chosen, is_decode, span);
  const int64_t splits = length ? ceil_div(span, length) : 1;
  const int64_t units = ceil_div(rows, spec.tile_rows) * spec.num_kv_heads;
  return {is_decode ? ceil_div(spec.num_kv_heads, spec.decode_heads) * splits : 0, is_decode ? 0 : units * splits,
          splits > 1 ? splits * q_len * spec.num_q_heads : 0, length};
}

// Writes a plan of plan_words(num_requests) words. Lengths must have been checked (monotonic, not negative).
inline void make_plan(const PlanSpec& spec, const int32_t* cu_seqlens_q, const int32_t* seq_lens, int64_t num_requests,
                      int64_t* words) {
  const int64_t n = num_requests;
  int64_t* decode_items = words + kPlanHeaderWords;
  int64_t* prefill_items = decode_items + n + 1;
  int64_t* partial_base = prefill_items + n + 1;
  int64_t* split_len = partial_base + n + 1;

  StepWork work;
  for (int64_t i = 0; i < n; ++i) add_request(spec, cu_seqlens_q[i + 1] - cu_seqlens_q[i], seq_lens[i], &work);
  const SplitLengths chosen = choose_splits(spec, work);
  decode_items[0] = prefill_items[0] = partial_base[0] = 0;
  for (int64_t i = 0; i < n; ++i) {
    const RequestShare share = request_share(spec, chosen, cu_seqlens_q[i + 1] - cu_seqlens_q[i], seq_lens[i]);
    split_len[i] = share.split_len;
    decode_items[i + 1] = decode_items[i] + share.decode_items;
    prefill_items[i + 1] = prefill_items[i] + share.prefill_items;
    partial_base[i + 1] = partial_base[i] + share.partial_rows;
  }

  PlanHeader header{};
  header.magic = kPlanMagic;
  header.num_requests = n;
  header.num_tokens = cu_seqlens_q[n];
  header.decode_total = decode_items[n];
  header.prefill_total = prefill_items[n];
  header.partial_rows = partial_base[n];
  header.lengths_checksum = lengths_checksum(cu_seqlens_q, seq_lens, n);
  header.tables_checksum = static_cast<int64_t>(checksum(0, decode_items, 4 * n + 3));
  header.spec = spec;
  *reinterpret_cast<PlanHeader*>(words) = header;
}

// Most partial rows that make_plan can ask for, from maxima alone.
//
// A request that is split spans more than one split length, so its splits number less than twice its share of the
// wanted items: at most 2 * wanted units of each class leave partial states (decodes that share the launch want twice
// as many items).
inline int64_t max_partial_rows(const PlanSpec& spec, int64_t max_tokens, int64_t max_kv_len) {
  const int64_t all_rows = max_tokens * spec.num_q_heads;
  if (spec.num_splits > 0) return spec.num_splits > 1 ? all_rows * spec.num_splits : 0;
  const int64_t wanted = spec.num_workers * spec.items_per_worker;
  const int64_t decode_unit = spec.decode_rows * spec.decode_heads;
  const int64_t length = spec.invariant ? spec.invariant_split : spec.min_split;
  const int64_t most_splits = ceil_div(max_kv_len, length);
  if (most_splits <= 1) return 0;
  const int64_t decode_units = spec.invariant ? wanted * most_splits : (spec.decode_cost ? 4 : 2) * wanted;
  const int64_t planned = decode_units * decode_unit + (spec.invariant ? 0 : 2 * wanted * spec.tile_rows);
  return std::min(planned, all_rows * most_splits);
}

}  // namespace chunkattn
