#include "arguments.h"

#include <array>
#include <initializer_list>

namespace chunkattn {
namespace {

// Stands for the data of a tensor that was given but holds nothing.
alignas(64) char kEmpty[64] = {};

// Walks a named tuple field by field.
class Fields {
 public:
  Fields(PyObject* tuple, Py_ssize_t count, Signature* signature = nullptr) : tuple_(tuple), signature_(signature) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count)
      throw py::type_error("args: expected the named tuple of chunkattn.args with " + std::to_string(count) +
                           " fields");
  }

  Tensor tensor(const char* arg, int rank, ElementType type = ElementType::kFloat) {
    return signed_(read_tensor(arg, next(), rank, type));
  }
  Tensor optional(const char* arg, int rank, ElementType type = ElementType::kFloat) {
    return signed_(read_optional(arg, next(), rank, type));
  }
  // Slot tensors may be int32 or int64.
  Tensor optional_index(const char* arg) { return signed_(read_any_index(arg, next())); }
  double number() {
    const double value = PyFloat_AsDouble(next());
    if (value == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    if (signature_) signature_->add(value);
    return value;
  }
  int64_t integer() {
    const int64_t value = PyLong_AsLongLong(next());
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    if (signature_) signature_->add(value);
    return value;
  }
  bool boolean() {
    const bool value = PyObject_IsTrue(next()) == 1;
    if (signature_) signature_->add(static_cast<int64_t>(value));
    return value;
  }
  std::string text() {
    PyObject* object = next();
    std::string value = object == Py_None ? std::string() : std::string(py::str(py::handle(object)));
    if (signature_) signature_->add(value);
    return value;
  }
  DType dtype(const char* arg) { return read_dtype(arg, next()); }

 private:
  PyObject* next() { return PyTuple_GET_ITEM(tuple_, position_++); }

  Tensor signed_(Tensor tensor) {
    if (signature_) signature_->add(tensor);
    return tensor;
  }

  PyObject* tuple_;
  Signature* signature_;
  Py_ssize_t position_ = 0;
};

BatchView batch_of(const Tensor& block_table, const Tensor& cu_seqlens_q, const Tensor& seq_lens) {
  BatchView batch;
  batch.block_table = block_table.as<const int32_t>();
  batch.block_table_stride_request = block_table.stride[0];
  batch.block_table_stride_column = block_table.stride[1];
  batch.table_columns = block_table.size[1];
  batch.cu_seqlens_q = cu_seqlens_q.as<const int32_t>();
  batch.seq_lens = seq_lens.as<const int32_t>();
  batch.num_requests = seq_lens.size[0];
  return batch;
}

KvScale scale_of(const Tensor& scale) {
  KvScale result;
  if (!scale.given) return result;
  result.data = scale.as<float>();
  if (scale.num_dims == 0) {
    result.mode = ScaleMode::kPerTensor;
  } else if (scale.num_dims == 1) {
    result.mode = ScaleMode::kPerHead;
    result.stride_head = scale.stride[0];
  } else {
    result.mode = ScaleMode::kPerTokenHead;
    result.stride_page = scale.stride[0];
    result.stride_slot = scale.stride[1];
    result.stride_head = scale.stride[2];
  }
  return result;
}

PagedPool pool_of(const Tensor& cache, const Tensor& scale) {
  PagedPool pool;
  pool.data = cache.data;
  pool.dtype = cache.dtype;
  pool.stride_page = cache.stride[0];
  pool.stride_slot = cache.stride[1];
  pool.stride_head = cache.stride[2];
  pool.scale = scale_of(scale);
  return pool;
}

StateView state_of(const Tensor& out, const Tensor& lse) {
  return {out.data, out.stride[0], out.stride[1], lse.as<float>(), lse.stride[0], lse.stride[1]};
}

bool any_requires_grad(PyObject* args, std::initializer_list<int> fields) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  for (const int field : fields) {
    const py::handle tensor(PyTuple_GET_ITEM(args, field));
    if (!tensor.is_none() && py::bool_(tensor.attr(py::handle(requires_grad)))) return true;
  }
  return false;
}

}  // namespace

AttentionParams plan_facts(int64_t num_tokens, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_dim,
                           int64_t head_dim_v, DType dtype, bool nhd) {
  AttentionParams p;
  p.num_tokens = num_tokens, p.num_q_heads = num_q_heads, p.num_kv_heads = num_kv_heads;
  p.head_dim = head_dim, p.head_dim_v = head_dim_v;
  p.dtype = p.k.dtype = dtype;
  p.k.stride_slot = nhd ? num_kv_heads : 1, p.k.stride_head = nhd ? 1 : 2;
  return p;
}

PlanCall read_plan(PyObject* args) {
  Fields fields(args, 16);
  PlanCall call;
  call.cu_seqlens_q = fields.tensor("cu_seqlens_q", 1, ElementType::kInt32);
  call.seq_lens = fields.tensor("seq_lens", 1, ElementType::kInt32);
  call.words = fields.tensor("words", 1, ElementType::kInt64);
  const int64_t num_q_heads = fields.integer(), num_kv_heads = fields.integer();
  const int64_t head_dim = fields.integer(), head_dim_v = fields.integer();
  const int64_t page_size = fields.integer();
  const DType dtype = fields.dtype("dtype");
  const bool causal = fields.boolean();
  const int64_t window_left = fields.integer(), window_right = fields.integer();
  const bool invariant = fields.boolean();
  call.num_splits = fields.integer();
  call.facts = plan_facts(0, num_q_heads, num_kv_heads, head_dim, head_dim_v, dtype, fields.text() == "NHD");
  call.facts.causal = causal, call.facts.window_left = window_left, call.facts.window_right = window_right;
  call.facts.invariant = invariant, call.facts.page_size = page_size;
  return call;
}

AttentionCall read_attention(PyObject* args, Signature* signature) {
  Fields fields(args, 23, signature);
  const Tensor q = fields.tensor("q", 3);
  const Tensor k_cache = fields.tensor("k_cache", 4);
  const Tensor v_cache = fields.tensor("v_cache", 4);
  const Tensor block_table = fields.tensor("block_table", 2, ElementType::kInt32);
  const Tensor cu_seqlens_q = fields.tensor("cu_seqlens_q", 1, ElementType::kInt32);
  const Tensor seq_lens = fields.tensor("seq_lens", 1, ElementType::kInt32);
  const Tensor out = fields.tensor("out", 3);
  const Tensor lse = fields.optional("lse", 2);
  const Tensor alibi = fields.optional("alibi_slopes", -1);
  const Tensor sinks = fields.optional("sinks", 1);
  const Tensor tree = fields.optional("tree_mask", 2, ElementType::kInt32);
  const Tensor k_scale = fields.optional("k_scale", -1);
  const Tensor v_scale = fields.optional("v_scale", -1);
  const Tensor plan = fields.optional("plan", 1, ElementType::kInt64);
  const Tensor workspace = fields.optional("workspace", 1, ElementType::kUInt8);
  if (signature) {
    const std::array<const Tensor*, 15> tensors = {&out,     &lse,         &workspace,    &q,        &k_cache,
                                                   &v_cache, &block_table, &cu_seqlens_q, &seq_lens, &alibi,
                                                   &sinks,   &tree,        &k_scale,      &v_scale,  &plan};
    signature->add_crossings(tensors, 3);
  }

  AttentionCall call;
  AttentionParams& p = call.params;
  p.batch = batch_of(block_table, cu_seqlens_q, seq_lens);
  p.q = q.data, p.q_stride_token = q.stride[0], p.q_stride_head = q.stride[1];
  p.k = pool_of(k_cache, k_scale);
  p.v = pool_of(v_cache, v_scale);
  p.out = out.data, p.out_stride_token = out.stride[0], p.out_stride_head = out.stride[1];
  p.lse = lse.as<float>(), p.lse_stride_token = lse.stride[0], p.lse_stride_head = lse.stride[1];
  p.alibi_slopes = alibi.as<const float>();
  if (alibi.given) {
    p.alibi_stride_request = alibi.num_dims == 2 ? alibi.stride[0] : 0;
    p.alibi_stride_head = alibi.stride[alibi.num_dims - 1];
  }
  p.sinks = sinks.as<const float>(), p.sinks_stride = sinks.stride[0];
  p.tree_mask = tree.given && !tree.data ? reinterpret_cast<const int32_t*>(kEmpty) : tree.as<const int32_t>();
  p.tree_stride_token = tree.stride[0], p.tree_words = tree.size[1];
  p.dtype = q.dtype;
  p.num_tokens = q.size[0], p.num_q_heads = q.size[1], p.head_dim = q.size[2];
  p.num_pages = k_cache.size[0], p.page_size = k_cache.size[1], p.num_kv_heads = k_cache.size[2];
  p.head_dim_v = v_cache.size[3];
  call.plan = plan.as<const int64_t>(), call.plan_words = plan.size[0];
  call.workspace = workspace.data, call.workspace_bytes = workspace.size[0];
  if (workspace.given && !workspace.data) call.workspace = kEmpty;  // an empty workspace is not a missing one

  p.softmax_scale = static_cast<float>(fields.number());
  p.causal = fields.boolean();
  p.window_left = fields.integer();
  p.window_right = fields.integer();
  p.softcap = static_cast<float>(fields.number());
  p.invariant = fields.boolean();
  call.num_splits = fields.integer();
  fields.text();  // backend: signed only
  call.requires_grad =
      any_requires_grad(args, {0, 1, 2, 6, 7, 8, 9, 11, 12});  // all that may hold floating-point numbers
  return call;
}

AppendCall read_append(PyObject* args, Signature* signature) {
  Fields fields(args, 16, signature);
  const Tensor k = fields.tensor("k", 3);
  const Tensor v = fields.tensor("v", 3);
  const Tensor k_cache = fields.tensor("k_cache", 4);
  const Tensor v_cache = fields.tensor("v_cache", 4);
  const Tensor block_table = fields.tensor("block_table", 2, ElementType::kInt32);
  const Tensor cu_seqlens_q = fields.tensor("cu_seqlens_q", 1, ElementType::kInt32);
  const Tensor seq_lens = fields.tensor("seq_lens", 1, ElementType::kInt32);
  const Tensor slots = fields.optional_index("slot_mapping");
  const Tensor k_scale = fields.optional("k_scale", -1);
  const Tensor v_scale = fields.optional("v_scale", -1);
  const Tensor q = fields.optional("q", 3);
  const Tensor cos = fields.optional("rope.cos", 2);
  const Tensor sin = fields.optional("rope.sin", 2);
  const Tensor positions = fields.optional("rope.positions", 1, ElementType::kInt64);
  if (signature) {
    const std::array<const Tensor*, 14> tensors = {&k_cache, &v_cache, &q,           &k_scale,      &v_scale,
                                                   &k,       &v,       &block_table, &cu_seqlens_q, &seq_lens,
                                                   &slots,   &cos,     &sin,         &positions};
    signature->add_crossings(tensors, 5);
  }

  AppendCall call;
  AppendParams& p = call.params;
  p.batch = batch_of(block_table, cu_seqlens_q, seq_lens);
  p.k = k.data, p.k_stride_token = k.stride[0], p.k_stride_head = k.stride[1];
  p.v = v.data, p.v_stride_token = v.stride[0], p.v_stride_head = v.stride[1];
  p.k_pool = pool_of(k_cache, k_scale);
  p.v_pool = pool_of(v_cache, v_scale);
  p.num_tokens = k.size[0], p.num_kv_heads = k.size[1], p.head_dim = k.size[2], p.head_dim_v = v.size[2];
  if (slots.given) {
    // An empty mapping has no data but still replaces the derived slots.
    p.slot_mapping = slots.data ? slots.data : kEmpty;
    p.slot_mapping_is_64 = slots.type == ElementType::kInt64;
    p.slot_stride = slots.stride[0];
    p.num_slots = slots.size[0];
  }
  if (q.given) p.q = q.data, p.q_stride_token = q.stride[0], p.q_stride_head = q.stride[1], p.num_q_heads = q.size[1];
  if (cos.given) {
    p.rope.cos = cos.data ? cos.as<const float>() : reinterpret_cast<const float*>(kEmpty);
    p.rope.sin = sin.as<const float>();
    p.rope.stride_position = cos.stride[0];
    p.rope.num_positions = cos.size[0];
    p.rope.rotary_dim = 2 * cos.size[1];
    p.rope.positions = positions.as<const int64_t>();
  }
  p.rope.interleaved = fields.boolean();
  fields.text();                                                                 // backend: signed only
  call.requires_grad = any_requires_grad(args, {0, 1, 2, 3, 8, 9, 10, 11, 12});  // as above
  p.dtype = k.dtype;
  p.num_pages = k_cache.size[0], p.page_size = k_cache.size[1];
  return call;
}

MergeParams read_merge(PyObject* args) {
  Fields fields(args, 7);
  const Tensor out_a = fields.tensor("out_a", 3);
  const Tensor lse_a = fields.tensor("lse_a", 2);
  const Tensor out_b = fields.tensor("out_b", 3);
  const Tensor lse_b = fields.tensor("lse_b", 2);
  const Tensor out = fields.tensor("out", 3);
  const Tensor lse = fields.tensor("lse", 2);
  MergeParams p;
  p.a = state_of(out_a, lse_a);
  p.b = state_of(out_b, lse_b);
  p.result = state_of(out, lse);
  p.dtype = out_a.dtype;
  p.num_tokens = out_a.size[0], p.num_heads = out_a.size[1], p.head_dim_v = out_a.size[2];
  return p;
}

}  // namespace chunkattn
