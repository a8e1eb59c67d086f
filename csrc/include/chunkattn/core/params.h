// Parameters of every kernel: plain pointers, sizes and strides. No torch, no Python.
//
// Shape letters, the same everywhere: T query tokens of the step, B requests, Hq/Hkv query and KV heads,
// D/Dv head dims of Q,K / V, N pages in the pool, P tokens per page, M columns of the block table.
// All strides are in elements and may be anything; the last dim of q, caches and out is contiguous.
#pragma once
#include <cstdint>

#include "chunkattn/core/host_device.h"

namespace chunkattn {

enum class DType : int32_t { kF32, kF16, kBF16, kE4M3, kE5M2, kI8 };

CHUNKATTN_HOST_DEVICE constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kF16 || dtype == DType::kBF16 ? 2 : 1;
}

// How a scale of quantised KV is indexed.
enum class ScaleMode : int32_t { kNone, kPerTensor, kPerHead, kPerTokenHead };

struct KvScale {
  ScaleMode mode = ScaleMode::kNone;
  float* data = nullptr;  // [] | [Hkv] | [N, P, Hkv]; written only by append_kv
  int64_t stride_page = 0, stride_slot = 0, stride_head = 0;
};

// One paged pool, K or V. NHD, HND, fused and cross-layer pools differ in strides only.
struct PagedPool {
  void* data = nullptr;  // [N, P, Hkv, D]
  DType dtype = DType::kF32;
  int64_t stride_page = 0, stride_slot = 0, stride_head = 0;
  KvScale scale;
};

// The ragged batch of one step.
struct BatchView {
  const int32_t* block_table = nullptr;  // [B, M]
  int64_t block_table_stride_request = 0, block_table_stride_column = 1;
  const int32_t* cu_seqlens_q = nullptr;  // [B + 1]
  const int32_t* seq_lens = nullptr;      // [B], including this step's tokens
  int64_t num_requests = 0;               // B
  int64_t table_columns = 0;              // M
};

struct AttentionParams {
  BatchView batch;

  const void* q = nullptr;  // [T, Hq, D]
  int64_t q_stride_token = 0, q_stride_head = 0;
  PagedPool k, v;
  void* out = nullptr;  // [T, Hq, Dv], dtype of q
  int64_t out_stride_token = 0, out_stride_head = 0;
  float* lse = nullptr;  // [T, Hq], may be nullptr
  int64_t lse_stride_token = 0, lse_stride_head = 0;

  const float* alibi_slopes = nullptr;                      // [Hq] or [B, Hq], may be nullptr
  int64_t alibi_stride_request = 0, alibi_stride_head = 1;  // stride_request 0 for [Hq]
  const float* sinks = nullptr;                             // [Hq], may be nullptr
  int64_t sinks_stride = 1;
  const int32_t* tree_mask = nullptr;  // [T, words]: bit j of word w = sees new token 32 w + j; may be nullptr
  int64_t tree_stride_token = 0, tree_words = 0;

  DType dtype = DType::kF32;  // of q and out
  int64_t num_tokens = 0;     // T, rows past cu_seqlens_q[B] are padding
  int64_t num_q_heads = 0, num_kv_heads = 0;
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t num_pages = 0, page_size = 0;

  float softmax_scale = 1.0f;
  float softcap = 0.0f;  // 0 = off
  bool causal = true;
  int64_t window_left = -1, window_right = -1;  // inclusive counts beside the query, -1 = unlimited
  bool invariant = false;                       // bit-identical rows for any batch and chunking

  CHUNKATTN_HOST_DEVICE int64_t group() const { return num_q_heads / num_kv_heads; }
};

// cos/sin tables and the pairing rule of a rotary embedding.
struct RopeParams {
  const float* cos = nullptr;   // [positions, rotary_dim / 2], may be nullptr (no RoPE)
  const float* sin = nullptr;   // [positions, rotary_dim / 2]
  int64_t stride_position = 0;  // of both
  int64_t num_positions = 0;
  const int64_t* positions = nullptr;  // [T], may be nullptr: seq_len - q_len + row
  int64_t rotary_dim = 0;
  bool interleaved = false;  // pairs (2i, 2i+1) if true, (i, i + rotary_dim/2) if not
};

struct AppendParams {
  BatchView batch;
  const void* k = nullptr;  // [T, Hkv, D]
  const void* v = nullptr;  // [T, Hkv, Dv]
  int64_t k_stride_token = 0, k_stride_head = 0, v_stride_token = 0, v_stride_head = 0;
  PagedPool k_pool, v_pool;
  const void* slot_mapping = nullptr;  // [T] int32 or int64, -1 = skip; may be nullptr
  bool slot_mapping_is_64 = false;
  int64_t slot_stride = 1;
  void* q = nullptr;  // [T, Hq, D] rotated in place, may be nullptr
  int64_t q_stride_token = 0, q_stride_head = 0;
  RopeParams rope;
  DType dtype = DType::kF32;              // of k, v and q
  int64_t num_tokens = 0, num_slots = 0;  // T; rows that slot_mapping covers
  int64_t num_q_heads = 0, num_kv_heads = 0, head_dim = 0, head_dim_v = 0;
  int64_t num_pages = 0, page_size = 0;
};

// One partial state: out [T, H, Dv] and lse [T, H] with their own strides.
struct StateView {
  void* out = nullptr;
  int64_t out_stride_token = 0, out_stride_head = 0;
  float* lse = nullptr;
  int64_t lse_stride_token = 0, lse_stride_head = 0;
};

struct MergeParams {
  StateView a, b, result;  // result may alias a or b
  DType dtype = DType::kF32;
  int64_t num_tokens = 0, num_heads = 0, head_dim_v = 0;
};

}  // namespace chunkattn
