// From raw products to scores: soft-cap, ALiBi, scales per token, masks. Only blocks that need it come here.
#pragma once
#include "rows.h"
#include "simd.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// How products become scores in units of log2. Without `transforms` the softmax applies `scale * log2(e)` itself.
struct ScoreRule {
  float scale;    // softmax scale times the constant scale of the keys
  float softcap;  // 0 = off
  bool has_slopes, has_key_scales;
  bool transforms;

  ScoreRule(const AttentionParams& p, int64_t kv_head)
      : scale(p.softmax_scale * constant_scale(p.k.scale, kv_head)),
        softcap(p.softcap),
        has_slopes(p.alibi_slopes != nullptr),
        has_key_scales(p.k.scale.mode == ScaleMode::kPerTokenHead) {
    // The shortcut takes the maximum before scaling, which is right for a positive finite scale only.
    const bool plain = scale > 0.0f && scale < kInfinity;
    transforms = softcap != 0.0f || has_slopes || has_key_scales || !plain;
  }

  float softmax_factor() const { return transforms ? 1.0f : scale * kLog2e; }

  // distance = key position - query position; token_scale = the key's own scale.
  CHUNKATTN_METHOD Vf apply(Vf s, Vf token_scale, Vf slope, Vf distance) const {
    s = mul(s, splat(scale));
    if (has_key_scales) s = mul(s, token_scale);
    if (softcap != 0.0f) s = mul(tanh_of(mul(s, splat(1.0f / softcap))), splat(softcap));
    if (has_slopes) s = madd(slope, distance, s);
    return mul(s, splat(kLog2e));
  }
};

// Tree bits of new tokens: word w of the row of one query token, or nothing visible past the last word.
CHUNKATTN_INLINE uint32_t tree_word(const AttentionParams& p, int64_t token, int64_t word) {
  if (word < 0 || word >= p.tree_words) return 0;
  return static_cast<uint32_t>(p.tree_mask[token * p.tree_stride_token + word]);
}

CHUNKATTN_INLINE bool tree_sees(const AttentionParams& p, const Request& request, int64_t token_in_request,
                                int64_t key) {
  const int64_t new_key = key - request.first_new_key();
  if (!p.tree_mask || new_key < 0) return true;
  return tree_word(p, request.first_token + token_in_request, new_key / 32) >> new_key % 32 & 1;
}

// Scores of num_keys keys from first_key on against a tile of rows: scores[key][row], rows in the lanes.
// Rewrites block_max. `first_row` is the tile's first row counted from the item's first.
template <class Compute>
static void finish_scores(const AttentionParams& p, const Request& request, const WorkItem& item, const ScoreRule& rule,
                          const Rows& rows, int64_t first_row, int vecs, int64_t first_key, int64_t num_keys,
                          bool masked, const float* key_scale, float* scores, float* block_max) {
  const int64_t pitch = vecs * kLanes;
  const bool tree = masked && p.tree_mask != nullptr;
  for (int v = 0; v < vecs; ++v) {
    const int64_t lane0 = first_row + v * kLanes;
    const Vi begin = load_int(rows.begin + lane0), end = load_int(rows.end + lane0);
    const Vi position = load_int(rows.position + lane0);
    const Vf slope = rule.has_slopes ? load(rows.slope + lane0) : splat(0.0f);
    Vf top = splat(-kInfinity);
    int32_t words[kLanes];
    int64_t word_held = -1;
    for (int64_t i = 0; i < num_keys; ++i) {
      float* target = scores + i * pitch + v * kLanes;
      const Vi key = splat_int(static_cast<int32_t>(first_key + i));
      Vf s = load(target);
      if (rule.transforms)
        s = rule.apply(s, splat(rule.has_key_scales ? key_scale[i] : 1.0f), slope, to_float(sub_int(key, position)));
      if (masked) {
        s = select(in_range(key, begin, end), s, splat(-kInfinity));
        const int64_t new_key = first_key + i - request.first_new_key();
        if (tree && new_key >= 0) {
          if (new_key / 32 != word_held) {
            word_held = new_key / 32;
            for (int64_t lane = 0; lane < kLanes; ++lane) {
              const int64_t row = min_of(item.row_begin + lane0 + lane, item.row_end - 1);
              words[lane] = static_cast<int32_t>(tree_word(p, request.first_token + row / request.group, word_held));
            }
          }
          s = select(has_bit(load_int(words), static_cast<int>(new_key % 32)), s, splat(-kInfinity));
        }
      }
      store(target, s);
      top = max(top, s);
    }
    store(block_max + v * kLanes, top);
  }
}

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
