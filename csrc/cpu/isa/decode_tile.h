// A work item of few packed rows: head dims lie in the vector lanes, keys and values are read where they are.
//
// Bound by memory, not arithmetic, so the order of reads decides. A block of keys is first read through by plain loads
// in address order, all KV heads of the item and K and V in step: two streams that the hardware's prefetcher follows,
// which it does not follow head by head, nor at the bidding of software prefetches. Those serve for one line in each
// 4 KiB of the next block, so that its address translations are there in time. 16 sequences of 2048 keys (134 MB, bf16,
// 2 cores of Zen 4): 5.2 ms; with software prefetch of every line 8.3, with K before V 6.1.
#pragma once
#include "../scratch.h"
#include "decode_product.h"
#include "epilogue.h"
#include "score.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// Where a block's keys lie in both pools: bytes, and elements of the scales per token.
struct DecodeBlock {
  int64_t begin, count;
  int64_t *keys, *values, *key_scales, *value_scales;  // [kDecodeKeys]
};

template <class Compute>
class DecodeItem {
 public:
  static int64_t scratch_bytes(const AttentionParams& p, int64_t max_rows, int64_t max_heads) {
    Scratch measure(nullptr);
    DecodeItem item(p, measure, max_rows, max_heads);
    return measure.used();
  }

  DecodeItem(const AttentionParams& p, Scratch& scratch, int64_t max_rows, int64_t max_heads)
      : p_(p),
        units_(p.head_dim / Compute::kPerUnit),
        value_units_(p.head_dim_v / Compute::kPerUnit),
        q_pitch_(round_up_to(units_, 2 * kLanes)),
        out_pitch_(round_up_to(p.head_dim_v, kLanes * kDecodeCols)) {
    q_ = scratch.take<uint32_t>(max_heads * max_rows * q_pitch_);
    out_ = scratch.take<float>(max_heads * max_rows * out_pitch_);
    max_ = scratch.take<float>(max_heads * max_rows);
    sum_ = scratch.take<float>(max_heads * max_rows);
    scores_ = scratch.take<float>(max_rows * kDecodePitch);
    low_ = wants_low_weights<Compute>(p) ? scratch.take<float>(max_rows * kDecodePitch) : nullptr;
    converted_ = scratch.take<uint32_t>(kDecodeKeys * max_of(units_, value_units_));
    zeros_ = scratch.take<uint32_t>(out_pitch_);
    row_ = scratch.take<float>(out_pitch_);
    key_scale_ = scratch.take<float>(kDecodePitch);
    value_scale_ = scratch.take<float>(kDecodePitch);
    for (DecodeBlock& block : blocks_) {
      block.keys = scratch.take<int64_t>(kDecodeKeys);
      block.values = scratch.take<int64_t>(kDecodeKeys);
      block.key_scales = scratch.take<int64_t>(kDecodeKeys);
      block.value_scales = scratch.take<int64_t>(kDecodeKeys);
    }
    pointers_ = scratch.take<const char*>(kDecodePitch);
  }

  // Returns false, with nothing written, if NaN or infinity in V may have spoilt rows: those that must not see its key,
  // or whose weight for it comes in two parts or is 0. The item then has to be done by the prefill kernel, which can
  // set such values apart.
  bool run(const WorkItem& item, float* partials) {
    const Request request(p_, item.request);
    const int64_t num_rows = item.row_end - item.row_begin, heads = item.kv_head_end - item.kv_head_begin;
    read_as_ = Compute::reads_as(p_.k.dtype, num_rows);
    products_ = decode_products<Compute>(read_as_, low_ != nullptr);
    const int64_t first_position = request.first_new_key() + item.row_begin / request.group;
    const int64_t last_position = request.first_new_key() + (item.row_end - 1) / request.group;
    const int64_t begin = visible_keys(p_, request, item, first_position).begin;
    const int64_t end = visible_keys(p_, request, item, last_position).end;
    start(request, item);
    const KeyAddress key_address(p_, p_.k, item.request, bytes_of(p_.k.dtype));
    const KeyAddress value_address(p_, p_.v, item.request, bytes_of(p_.v.dtype));
    locate(key_address, value_address, begin, end, blocks_[0]);
    for (int64_t b = begin, at = 0; b < end; b += kDecodeKeys, at ^= 1) {
      const DecodeBlock& block = blocks_[at];
      DecodeBlock& next = blocks_[at ^ 1];
      locate(key_address, value_address, b + kDecodeKeys, end, next);
      prefetch_translations(p_.k, next.keys, next.count, item.kv_head_begin, key_address.bytes);
      prefetch_translations(p_.v, next.values, next.count, item.kv_head_begin, value_address.bytes);
      touch(block, item, key_address.bytes, value_address.bytes);
      for (int64_t h = 0; h < heads; ++h) meet(request, item, block, h, num_rows);
    }
    if (!all_finite(heads * num_rows)) return false;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t state = h * num_rows + r;
        products_.in_order(out_ + state * out_pitch_, row_, out_pitch_);
        const int64_t kv_head = item.kv_head_begin + h, row = item.row_begin + r;
        leave_row(p_, request, item, kv_head, row, RowIndex(request, kv_head, row), max_[state], sum_[state], row_,
                  partials);
      }
    return true;
  }

 private:
  void start(const Request& request, const WorkItem& item) {
    const RowConverter convert = row_converter<Compute>(p_.dtype);
    int64_t state = 0;
    for (int64_t head = item.kv_head_begin; head < item.kv_head_end; ++head)
      for (int64_t row = item.row_begin; row < item.row_end; ++row, ++state) {
        const int64_t token = request.first_token + row / request.group;
        const int64_t q_head = head * request.group + row % request.group;
        uint32_t* target = q_ + state * q_pitch_;
        const int64_t offset = (token * p_.q_stride_token + q_head * p_.q_stride_head) * bytes_of(p_.dtype);
        convert(static_cast<const char*>(p_.q), &offset, 1, target, p_.head_dim);
        for (int64_t u = units_; u < q_pitch_; ++u) target[u] = 0;
        products_.to_key_order(target, q_pitch_);
        max_[state] = -kInfinity;
        sum_[state] = 0.0f;
      }
    memset(out_, 0, state * out_pitch_ * 4);
    memset(zeros_, 0, out_pitch_ * 4);
  }

  void locate(const KeyAddress& keys, const KeyAddress& values, int64_t begin, int64_t end, DecodeBlock& block) {
    block.begin = begin;
    block.count = max_of(min_of(end - begin, kDecodeKeys), 0);
    keys.offsets(begin, begin + block.count, block.keys);
    values.offsets(begin, begin + block.count, block.values);
    if (scales_keys()) keys.scale_offsets(begin, begin + block.count, block.key_scales);
    if (scales_values()) values.scale_offsets(begin, begin + block.count, block.value_scales);
  }

  bool scales_keys() const { return p_.k.scale.mode == ScaleMode::kPerTokenHead; }
  bool scales_values() const { return p_.v.scale.mode == ScaleMode::kPerTokenHead; }

  static void touch_scales(const KvScale& scale, const int64_t* offsets, int64_t count, const WorkItem& item) {
    for (int64_t i = 0; i < count; ++i)
      static_cast<void>(*(volatile const float*)(scale.data + offsets[i] + item.kv_head_begin * scale.stride_head));
  }

  // Brings a block of all heads into L2.
  void touch(const DecodeBlock& block, const WorkItem& item, int64_t key_bytes, int64_t value_bytes) const {
    for (int64_t i = 0; i < block.count; ++i)
      for (int64_t head = item.kv_head_begin; head < item.kv_head_end; ++head) {
        touch_row(p_.k, block.keys[i], head, key_bytes, p_.head_dim);
        touch_row(p_.v, block.values[i], head, value_bytes, p_.head_dim_v);
      }
    touch_scales(p_.k.scale, block.key_scales, scales_keys() ? block.count : 0, item);
    touch_scales(p_.v.scale, block.value_scales, scales_values() ? block.count : 0, item);
  }

  // Rows of a block for one head, in place or converted; behind them copies of the last pointer as padding.
  void point(const PagedPool& pool, const int64_t* offsets, int64_t count, int64_t kv_head, int64_t dim, bool keys) {
    const int64_t bytes = bytes_of(pool.dtype), units = dim / Compute::kPerUnit;
    const char* base = static_cast<const char*>(pool.data) + kv_head * pool.stride_head * bytes;
    if (pool.dtype == read_as_) {
      for (int64_t i = 0; i < count; ++i) pointers_[i] = base + offsets[i];
    } else {
      const RowConverter convert = row_converter<Compute>(pool.dtype);
      convert(base, offsets, count, converted_, dim);
      for (int64_t i = 0; i < count; ++i) pointers_[i] = reinterpret_cast<const char*>(converted_ + i * units);
    }
    const char* beyond = keys ? pointers_[count - 1] : reinterpret_cast<const char*>(zeros_);
    for (int64_t i = count; i < round_up_to(count, kLanes); ++i) pointers_[i] = beyond;
  }

  void meet(const Request& request, const WorkItem& item, const DecodeBlock& block, int64_t h, int64_t num_rows) {
    const int64_t kv_head = item.kv_head_begin + h;
    const ScoreRule rule(p_, kv_head);
    point(p_.k, block.keys, block.count, kv_head, p_.head_dim, true);
    const uint32_t* q = q_ + h * num_rows * q_pitch_;
    products_.scores(num_rows, q, q_pitch_, units_, pointers_, block.count, scores_);
    if (scales_keys()) load_scales(p_.k.scale, block.key_scales, block.count, kv_head, key_scale_);
    if (scales_values()) load_scales(p_.v.scale, block.value_scales, block.count, kv_head, value_scale_);
    float rescale[kMaxDecodeRows];
    for (int64_t r = 0; r < num_rows; ++r)
      rescale[r] = weigh_row(request, item, rule, block, kv_head, h * num_rows + r, r);
    point(p_.v, block.values, block.count, kv_head, p_.head_dim_v, false);
    products_.values(num_rows, {scores_, low_}, pointers_, block.count, value_units_, rescale,
                     out_ + h * num_rows * out_pitch_, out_pitch_);
  }

  void load_scales(const KvScale& scale, const int64_t* offsets, int64_t count, int64_t kv_head, float* target) {
    for (int64_t i = 0; i < count; ++i) target[i] = scale.data[offsets[i] + kv_head * scale.stride_head];
    for (int64_t i = count; i < kDecodePitch; ++i) target[i] = 1.0f;
  }

  // Scores of one row of the block into weights, in place; returns the factor for the older sums of values.
  float weigh_row(const Request& request, const WorkItem& item, const ScoreRule& rule, const DecodeBlock& block,
                  int64_t kv_head, int64_t state, int64_t r) {
    float* scores = scores_ + r * kDecodePitch;
    const int64_t row = item.row_begin + r, token = row / request.group;
    const int64_t position = request.first_new_key() + token;
    const KeyRange keys = visible_keys(p_, request, item, position);
    const int64_t padded = round_up_to(block.count, 2 * kLanes);
    const Vi begin = splat_int(static_cast<int32_t>(keys.begin));
    const Vi end = splat_int(static_cast<int32_t>(max_of(min_of(keys.end, block.begin + block.count), 0)));
    const int64_t q_head = kv_head * request.group + row % request.group;
    const float slope = rule.has_slopes
                            ? p_.alibi_slopes[request.index * p_.alibi_stride_request + q_head * p_.alibi_stride_head]
                            : 0.0f;
    Vf top = splat(-kInfinity);
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Vi key = count_from(static_cast<int32_t>(block.begin + i));
      Vf s = load(scores + i);
      if (rule.transforms)
        s = rule.apply(s, rule.has_key_scales ? load(key_scale_ + i) : splat(1.0f), splat(slope),
                       to_float(sub_int(key, splat_int(static_cast<int32_t>(position)))));
      s = select(in_range(key, begin, end), s, splat(-kInfinity));
      store(scores + i, s);
      top = max(top, s);
    }
    if (p_.tree_mask && block.begin + block.count > request.first_new_key()) {
      top = splat(-kInfinity);
      for (int64_t i = max_of(request.first_new_key() - block.begin, 0); i < block.count; ++i)
        if (!tree_sees(p_, request, token, block.begin + i)) scores[i] = -kInfinity;
      for (int64_t i = 0; i < padded; i += kLanes) top = max(top, load(scores + i));
    }
    const float factor = rule.softmax_factor(), block_max = max_lane(top) * factor, held = max_[state];
    float shrink = 1.0f;
    if (held < block_max) {
      shrink = max_lane(exp2_of(splat(held - block_max)));
      max_[state] = block_max;
    }
    const Vf minus = sub(splat(0.0f), finite_max(splat(max_[state])));
    Vf total = splat(0.0f);
    for (int64_t i = 0; i < padded; i += 2 * kLanes) {
      Vf a = exp2_of<Compute::kExp2Degree>(madd(load(scores + i), splat(factor), minus));
      Vf b = exp2_of<Compute::kExp2Degree>(madd(load(scores + i + kLanes), splat(factor), minus));
      total = add(total, add(a, b));
      if (scales_values()) {
        a = mul(a, load(value_scale_ + i));
        b = mul(b, load(value_scale_ + i + kLanes));
      }
      Compute::store_weights(scores, i, a, b, low_ ? low_ + r * kDecodePitch : nullptr);
    }
    sum_[state] = sum_[state] * shrink + sum(total);
    return shrink;
  }

  bool all_finite(int64_t states) const {
    Vf doubt = splat(0.0f);  // x * 0 is NaN unless x is finite
    for (int64_t i = 0; i < states * out_pitch_; i += kLanes) doubt = madd(load(out_ + i), splat(0.0f), doubt);
    return sum(doubt) == 0.0f;
  }

  const AttentionParams& p_;
  DType read_as_ = Compute::kNative;
  DecodeProducts products_{};
  const int64_t units_, value_units_, q_pitch_, out_pitch_;
  uint32_t *q_, *converted_, *zeros_;
  float *out_, *max_, *sum_, *scores_, *low_, *row_, *key_scale_, *value_scale_;
  DecodeBlock blocks_[2];
  const char** pointers_;
};

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
