// Which keys a query row sees: causal, window and tree mask, all of which must agree.
#pragma once
#include <cstdint>

#include "chunkattn/core/params.h"

namespace chunkattn {

struct KeyRange {
  int32_t begin, end;  // key positions, half open

  __device__ bool holds(int32_t position) const { return position >= begin && position < end; }
  __device__ bool holds_all(int32_t first, int32_t count) const { return first >= begin && first + count <= end; }
};

// The three faces of the mask of one request: `range` bounds what one row sees, `of_rows` what any row of a tile sees,
// `by_all_rows` what every row of a tile sees (there nothing needs masking).
class VisibleKeys {
 public:
  __device__ VisibleKeys(const AttentionParams& p, int32_t kv_len, int32_t first_new_key, int64_t first_token)
      : kv_len_(kv_len), first_new_key_(first_new_key) {
    // Windows wider than any position are no windows; so positions never overflow 32 bits.
    constexpr int64_t kWidest = 0x3fffffff;
    left_ = p.window_left < 0 || p.window_left > kWidest ? -1 : static_cast<int32_t>(p.window_left);
    right_ = p.causal ? 0 : p.window_right < 0 || p.window_right > kWidest ? -1 : static_cast<int32_t>(p.window_right);
    tree_ = p.tree_mask ? p.tree_mask + first_token * p.tree_stride_token : nullptr;
    tree_stride_ = p.tree_stride_token;
    tree_words_ = static_cast<int32_t>(p.tree_words);
  }

  // Of the row at this position, before the tree mask.
  __device__ KeyRange range(int32_t position) const {
    const int32_t begin = left_ < 0 ? 0 : max(position - left_, 0);
    return {begin, right_ < 0 ? kv_len_ : min(position + right_ + 1, kv_len_)};
  }
  // Rows see later keys the later they stand, so the first and the last row bound the others.
  __device__ KeyRange of_rows(int32_t first_position, int32_t last_position) const {
    return {range(first_position).begin, range(last_position).end};
  }
  __device__ KeyRange by_all_rows(int32_t first_position, int32_t last_position) const {
    KeyRange all{range(last_position).begin, range(first_position).end};
    if (tree_) all.end = min(all.end, first_new_key_);
    return all;
  }

  __device__ bool has_tree() const { return tree_ != nullptr; }
  // Bit j of word w of a token's row = it sees new token 32 w + j; history is always visible.
  __device__ bool tree_shows(int32_t token_in_request, int32_t position) const {
    const int32_t new_key = position - first_new_key_, word = new_key >> 5;
    if (new_key < 0) return true;
    if (word >= tree_words_) return false;
    return static_cast<uint32_t>(tree_[token_in_request * tree_stride_ + word]) >> (new_key & 31) & 1;
  }

 private:
  int32_t kv_len_, first_new_key_, left_, right_, tree_words_;
  const int32_t* tree_;
  int64_t tree_stride_;
};

}  // namespace chunkattn
