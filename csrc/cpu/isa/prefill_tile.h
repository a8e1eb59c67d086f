// A work item of many packed rows: scores transposed, so that query rows lie in the vector lanes.
//
// Keys and values of a block are staged once and then met by every tile of rows of the item. Blocks begin at absolute
// multiples of their size and every step depends on the row alone, so a row's bits do not change with the rows beside
// it: this is the only kernel of the invariant mode.
#pragma once
#include "../attention.h"
#include "../scratch.h"
#include "ahead.h"
#include "product.h"
#include "results.h"
#include "score.h"
#include "softmax.h"
#include "stage.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

template <class Compute>
class PrefillItem {
 public:
  // Bytes of scratch for an item of up to max_rows rows.
  static int64_t scratch_bytes(const AttentionParams& p, int64_t max_rows) {
    Scratch measure(nullptr);
    PrefillItem item(p, measure, max_rows);
    return measure.used();
  }

  PrefillItem(const AttentionParams& p, Scratch& scratch, int64_t max_rows)
      : p_(p), units_(p.head_dim / Compute::kPerUnit) {
    const int64_t rows = round_up_to(max_rows, kTileRows), keys = Compute::kBlockKeys;
    q_ = scratch.take<uint32_t>(rows * units_);
    states_ = take_states(scratch, rows);
    if (p.invariant) joined_ = take_states(scratch, rows);
    stage_.keys = scratch.take<uint32_t>(keys * units_);
    stage_.values = scratch.take<uint32_t>(p.head_dim_v / kTileBroadcasts * stage_.kPanel);
    stage_.rows = scratch.take<uint32_t>(2 * p.head_dim_v + 16);
    stage_.offsets = scratch.take<int64_t>(keys);
    stage_.key_scale = p.k.scale.mode == ScaleMode::kPerTokenHead ? scratch.take<float>(keys) : nullptr;
    stage_.value_scale = p.v.scale.mode == ScaleMode::kPerTokenHead ? scratch.take<float>(keys) : nullptr;
    scores_ = scratch.take<float>(keys * kTileRows);
    low_ = wants_low_weights<Compute>(p) ? scratch.take<float>(keys * kTileRows / 2) : nullptr;
    poison_ = scratch.take<float>(keys * p.head_dim_v);
    poisoned_ = scratch.take<bool>(keys);
    next_keys_ = scratch.take<int64_t>(keys);
    next_values_ = scratch.take<int64_t>(keys);
    row_ = scratch.take<float>(4 * max_of(p.head_dim, p.head_dim_v) + 16);
    rows_.begin = scratch.take<int32_t>(rows);
    rows_.end = scratch.take<int32_t>(rows);
    rows_.position = scratch.take<int32_t>(rows);
    rows_.token = scratch.take<int32_t>(rows);
    rows_.head = scratch.take<int32_t>(rows);
    rows_.slope = p.alibi_slopes ? scratch.take<float>(rows) : nullptr;
  }

  void run(const WorkItem& item, int64_t kv_head, float* partials) {
    const Request request(p_, item.request);
    const int64_t num_rows = item.row_end - item.row_begin;
    padded_rows_ = round_up_to(num_rows, kTileRows);
    rows_.fill(p_, request, item, kv_head, padded_rows_);
    accumulate(request, item, kv_head, false);
    if (leave(request, item, kv_head, num_rows, partials)) return;
    // A key that some rows must not see may hold NaN or infinity in V, which 0 weights do not silence. Rare: found by
    // its trace in the result, and then done again with such values set apart.
    accumulate(request, item, kv_head, true);
    leave(request, item, kv_head, num_rows, partials);
  }

 private:
  States take_states(Scratch& scratch, int64_t rows) const {
    States s;
    s.out = scratch.take<float>(rows * p_.head_dim_v);
    s.max = scratch.take<float>(rows);
    s.sum = scratch.take<float>(rows);
    return s;
  }

  int64_t num_tiles() const { return padded_rows_ / kTileRows; }

  // The last tile may need fewer vectors than the others.
  int tile_vecs(int64_t tile, int64_t num_rows) const {
    return static_cast<int>(min_of(kTileVecs, (num_rows - tile * kTileRows + kLanes - 1) / kLanes));
  }

  const char* query(int64_t i) const {
    const RowIndex at = rows_.index(i);
    return static_cast<const char*>(p_.q) +
           (at.token * p_.q_stride_token + at.head * p_.q_stride_head) * bytes_of(p_.dtype);
  }

  void pack_queries(int64_t tile, int64_t num_rows) {
    const RowConverter convert = row_converter<Compute>(p_.dtype);
    const bool native = p_.dtype == Compute::kNative;
    const int64_t pitch = tile_vecs(tile, num_rows) * kLanes;
    uint32_t* target = q_ + tile * kTileRows * units_;
    for (int64_t r = 0; r < pitch; r += 4) {
      const void* sources[4];
      for (int64_t i = 0; i < 4; ++i) {
        sources[i] = query(tile * kTileRows + r + i);
        if (native) continue;
        uint32_t* converted = reinterpret_cast<uint32_t*>(row_) + i * units_;
        convert(static_cast<const char*>(sources[i]), &kNoOffset, 1, converted, p_.head_dim);
        sources[i] = converted;
      }
      for (int64_t u = 0; u < units_; u += 4) {
        const void* from[4];
        void* to[4];
        for (int64_t i = 0; i < 4; ++i) {
          from[i] = static_cast<const uint32_t*>(sources[i]) + u;
          to[i] = target + (u + i) * pitch + r;
        }
        transpose4(from, to);
      }
    }
  }

  // Walks the item's keys. `careful` sets NaN and infinities of V apart.
  void accumulate(const Request& request, const WorkItem& item, int64_t kv_head, bool careful) {
    constexpr int64_t kKeys = Compute::kBlockKeys;
    const int64_t num_rows = item.row_end - item.row_begin;
    const int64_t begin = rows_.begin[0], end = rows_.end[num_rows - 1];
    const ScoreRule rule(p_, kv_head);
    const KeyAddress key_address(p_, p_.k, item.request, bytes_of(p_.k.dtype));
    const KeyAddress value_address(p_, p_.v, item.request, bytes_of(p_.v.dtype));
    const char* key_base = static_cast<const char*>(p_.k.data) + kv_head * p_.k.stride_head * key_address.bytes;
    const char* value_base = static_cast<const char*>(p_.v.data) + kv_head * p_.v.stride_head * value_address.bytes;
    for (int64_t i = 0; i < min_of(kTileRows, padded_rows_); ++i)
      for (int64_t byte = 0; byte < p_.head_dim * bytes_of(p_.dtype); byte += 64) __builtin_prefetch(query(i) + byte);
    states_.reset(padded_rows_, p_.head_dim_v);
    invariant_splits_ = begin < end && p_.invariant ? (end - 1) / kInvariantSplit - begin / kInvariantSplit + 1 : 1;
    if (invariant_splits_ > 1) joined_.reset(padded_rows_, p_.head_dim_v);
    for (int64_t b = begin / kKeys * kKeys; b < end; b += kKeys) {
      const Block block{b, max_of(b, begin), min_of(b + kKeys, end)};
      stage_.load_keys(p_, key_address, block, kv_head);
      stage_.load_values(p_, value_address, block, kv_head);
      if (careful) set_poison_apart(block);
      const int64_t next = min_of(b + kKeys, end), num_next = min_of(next + kKeys, end) - next;
      key_address.offsets(next, next + num_next, next_keys_);
      value_address.offsets(next, next + num_next, next_values_);
      const bool first_block = b <= begin, last_block = b + kKeys >= end;
      for (int64_t t = 0; t < num_tiles(); ++t) {
        if (first_block) pack_queries(t, num_rows);
        ahead_.clear();
        for (int64_t i = num_next * t / num_tiles(); i < num_next * (t + 1) / num_tiles(); ++i) {
          ahead_.add(key_base + next_keys_[i], p_.head_dim * key_address.bytes);
          ahead_.add(value_base + next_values_[i], p_.head_dim_v * value_address.bytes);
        }
        if (first_block)
          for (int64_t i = (t + 1) * kTileRows; i < min_of((t + 2) * kTileRows, padded_rows_); ++i)
            ahead_.add(query(i), p_.head_dim * bytes_of(p_.dtype));
        if (item.num_splits == 1 && (last_block || rows_.end[min_of((t + 1) * kTileRows, num_rows) - 1] <= b + kKeys))
          for (int64_t i = t * kTileRows; i < min_of((t + 1) * kTileRows, num_rows); ++i)
            ahead_.add(out_row(p_, rows_.index(i)), p_.head_dim_v * bytes_of(p_.dtype));
        meet(request, item, rule, block, t, num_rows);
        if (careful) add_poison(request, item, block, t, num_rows);
      }
      if (invariant_splits_ > 1 && (b + kKeys >= end || (b + kKeys) % kInvariantSplit == 0)) fold(num_rows);
    }
  }

  // One tile of rows against the staged block.
  void meet(const Request& request, const WorkItem& item, const ScoreRule& rule, const Block& block, int64_t tile,
            int64_t num_rows) {
    const int64_t row0 = tile * kTileRows, last_row = min_of(row0 + kTileRows, num_rows) - 1;
    const int64_t begin = max_of(block.begin, rows_.begin[row0]), end = min_of(block.end, rows_.end[last_row]);
    if (begin >= end) return;
    const int vecs = tile_vecs(tile, num_rows);
    const int64_t pitch = vecs * kLanes;
    const int64_t first = (begin - block.block_begin) / 8 * 8, last = round_up_to(end - block.block_begin, 8);
    alignas(64) float block_max[kTileRows], rescale[kTileRows];
    for (int v = 0; v < vecs; ++v) store(block_max + v * kLanes, splat(-kInfinity));
    const uint32_t* q = q_ + row0 * units_;
    const int64_t steps = (last - first + p_.head_dim_v) / kTileBroadcasts;
    for (int64_t key = first; key < last; key += kTileBroadcasts) {
      ahead_.ask(steps);
      score_tile_of<Compute>(vecs, stage_.keys + key * units_, units_, q, units_, scores_ + (key - first) * pitch,
                             block_max);
    }

    const int64_t first_key = block.block_begin + first, last_key = block.block_begin + last;
    const bool masked = rows_.begin[last_row] > first_key || rows_.end[row0] < last_key ||
                        (p_.tree_mask && last_key > request.first_new_key());
    if (masked || rule.transforms)
      finish_scores<Compute>(p_, request, item, rule, rows_, row0, vecs, first_key, last - first, masked,
                             stage_.key_scale + first, scores_, block_max);

    const float factor = rule.softmax_factor();
    const bool moved = raise_max(block_max, factor, vecs, states_.max + row0, rescale);
    weigh_of<Compute>(vecs, scores_, last - first, factor, states_.max + row0, rescale,
                      stage_.value_scale ? stage_.value_scale + first : nullptr, states_.sum + row0, low_);
    float* out = states_.out + row0 * p_.head_dim_v;
    const int64_t first_unit = first / Compute::kPerUnit, units = (last - first) / Compute::kPerUnit;
    for (int64_t c = 0; c < p_.head_dim_v; c += kTileBroadcasts) {
      ahead_.ask(steps);
      const uint32_t* panel = stage_.values + c / kTileBroadcasts * stage_.kPanel + first_unit * kTileBroadcasts;
      value_tile_of<Compute>(vecs, panel, reinterpret_cast<const uint32_t*>(scores_), units, out + c * pitch,
                             moved ? rescale : nullptr);
      if (low_)
        value_tile_of<Compute>(vecs, panel, reinterpret_cast<const uint32_t*>(low_), units, out + c * pitch, nullptr);
    }
  }

  // Moves NaN and infinities of the staged values to poison_.
  void set_poison_apart(const Block& block) {
    memset(poison_, 0, Compute::kBlockKeys * p_.head_dim_v * 4);
    memset(poisoned_, 0, Compute::kBlockKeys);
    stage_.take_poison(block, p_.head_dim_v, [this](int64_t key, int64_t column, float value) {
      poison_[key * p_.head_dim_v + column] = value;
      poisoned_[key] = true;
    });
  }

  // Gives NaN and infinities of V to those rows that see their keys.
  void add_poison(const Request& request, const WorkItem& item, const Block& block, int64_t tile, int64_t num_rows) {
    const int64_t row0 = tile * kTileRows, pitch = tile_vecs(tile, num_rows) * kLanes;
    float* out = states_.out + row0 * p_.head_dim_v;
    for (int64_t key = block.begin; key < block.end; ++key) {
      const int64_t i = key - block.block_begin;
      if (!poisoned_[i]) continue;
      const float scale = stage_.value_scale ? stage_.value_scale[i] : 1.0f;
      for (int64_t row = row0; row < min_of(row0 + kTileRows, num_rows); ++row) {
        if (key < rows_.begin[row] || key >= rows_.end[row]) continue;
        if (!tree_sees(p_, request, (item.row_begin + row) / request.group, key)) continue;
        for (int64_t c = 0; c < p_.head_dim_v; ++c)
          if (poison_[i * p_.head_dim_v + c] != 0.0f)
            out[c * pitch + row - row0] += poison_[i * p_.head_dim_v + c] * scale;
      }
    }
  }

  // Invariant mode: joins the state of the split just walked to those before it, as merge_splits does, and starts
  // afresh.
  void fold(int64_t num_rows) {
    for (int64_t t = 0; t < num_tiles(); ++t) {
      const int vecs = tile_vecs(t, num_rows);
      for (int v = 0; v < vecs; ++v) {
        const int64_t lane0 = t * kTileRows + v * kLanes;
        const JoinFactors f = join_factors(load(joined_.max + lane0), load(states_.max + lane0));
        float* target = joined_.out + t * kTileRows * p_.head_dim_v + v * kLanes;
        const float* source = states_.out + t * kTileRows * p_.head_dim_v + v * kLanes;
        for (int64_t c = 0; c < p_.head_dim_v; ++c, target += vecs * kLanes, source += vecs * kLanes)
          store(target, join(load(target), f.left, load(source), f.right));
        store(joined_.sum + lane0, join(load(joined_.sum + lane0), f.left, load(states_.sum + lane0), f.right));
        store(joined_.max + lane0, f.max);
      }
    }
    states_.reset(padded_rows_, p_.head_dim_v);
  }

  // Leaves results or partial states of all rows. Returns whether all sums were finite.
  bool leave(const Request& request, const WorkItem& item, int64_t kv_head, int64_t num_rows, float* partials) {
    const States& state = invariant_splits_ > 1 ? joined_ : states_;
    const Results<Compute> results{p_, rows_, state, row_};
    const bool in_units = item.num_splits == 1 && p_.dtype == Compute::kNative;
    bool finite = true;
    for (int64_t t = 0; t < num_tiles(); ++t) {
      const int64_t row0 = t * kTileRows, rows = min_of(kTileRows, num_rows - row0);
      const int64_t pitch = tile_vecs(t, num_rows) * kLanes;
      float* out = state.out + row0 * p_.head_dim_v;
      finite &= all_finite(out, pitch * p_.head_dim_v);
      if (in_units)
        results.write_units(kv_head, row0, rows, pitch, out);
      else
        results.leave_rows(request, item, kv_head, row0, rows, pitch, out, partials);
    }
    return finite;
  }

  const AttentionParams& p_;
  const int64_t units_;
  int64_t padded_rows_ = 0, invariant_splits_ = 1;
  uint32_t* q_;  // [tiles][units][tile pitch]
  States states_{}, joined_{};
  Stage<Compute> stage_{};
  float *scores_, *low_, *row_, *poison_;
  bool* poisoned_;
  int64_t *next_keys_, *next_values_;
  Rows rows_{};
  Ahead<2 * Compute::kBlockKeys + 2 * kTileRows> ahead_;  // keys and values of a block, a tile's queries and results
};

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
