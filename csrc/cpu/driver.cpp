// The whole call: plan, two queues of work items, threads, merges.
#include <omp.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "checks.h"
#include "settings.h"

namespace chunkattn {

#if defined(__x86_64__)
namespace avx512bf16 {
extern const IsaTable kTable, kFloatTable;
}
namespace avx512 {
extern const IsaTable kTable;
}
namespace avx2 {
extern const IsaTable kTable;
}
#endif
namespace portable {
extern const IsaTable kTable;
}

namespace {

// Memory of a thread that grows and is kept, so that calls after the first allocate nothing.
class KeptMemory {
 public:
  ~KeptMemory() { std::free(data_); }
  char* at_least(int64_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      const int64_t rounded = (bytes + 4095) / 4096 * 4096;
      data_ = static_cast<char*>(std::aligned_alloc(4096, rounded));
      if (!data_) throw std::bad_alloc();
      size_ = rounded;
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local KeptMemory kept_scratch, kept_plan, kept_partials, kept_arrivals;

using Counter = std::atomic<int64_t>;

struct Queues {
  alignas(64) Counter decode{0};
  alignas(64) Counter prefill{0};
  alignas(64) std::atomic<bool> out_of_memory{false};
};

struct Call {
  const AttentionParams& params;
  const IsaTable& isa;
  Plan plan;
  float* partials;
  std::atomic<int32_t>* arrivals;
  int64_t scratch_size;
  Queues queues;

  void run(const WorkItem& item, char* scratch) {
    isa.run_item(params, plan.spec(), item, partials, scratch);
    if (item.num_splits == 1) return;
    // Release our partial state; whoever comes last acquires all of them and joins them in split order.
    const int32_t before = arrivals[item.arrival].fetch_add(1, std::memory_order_acq_rel);
    if (before + 1 == item.num_splits) isa.merge(params, item, partials, scratch);
  }

  bool run_next(bool decode, char* scratch) {
    Counter& head = decode ? queues.decode : queues.prefill;
    const int64_t total = decode ? plan.header().decode_total : plan.header().prefill_total;
    if (head.load(std::memory_order_relaxed) >= total) return false;
    const int64_t number = head.fetch_add(1, std::memory_order_relaxed);
    if (number >= total) return false;
    const BatchView& batch = params.batch;
    run(decode ? plan.decode_item(number, batch.cu_seqlens_q, batch.seq_lens)
               : plan.prefill_item(number, batch.cu_seqlens_q, batch.seq_lens),
        scratch);
    return true;
  }

  // Decodes are bound by memory, prefills by arithmetic: odd threads start with the first, even ones with the second,
  // so that both go on at the same time; whoever runs out helps the others.
  void work(int thread) {
    char* scratch;
    try {
      scratch = kept_scratch.at_least(scratch_size);
    } catch (const std::bad_alloc&) {
      queues.out_of_memory = true;
      return;
    }
    const bool decode_first = thread % 2 == 1;
    while (run_next(decode_first, scratch)) {
    }
    while (run_next(!decode_first, scratch)) {
    }
  }
};

void fill_padding(const AttentionParams& p) {
  const int64_t row_bytes = p.head_dim_v * size_of(p.dtype);
  for (int64_t token = p.batch.cu_seqlens_q[p.batch.num_requests]; token < p.num_tokens; ++token)
    for (int64_t head = 0; head < p.num_q_heads; ++head) {
      char* out =
          static_cast<char*>(p.out) + (token * p.out_stride_token + head * p.out_stride_head) * size_of(p.dtype);
      std::memset(out, 0, row_bytes);
      if (p.lse) p.lse[token * p.lse_stride_token + head * p.lse_stride_head] = -__builtin_inff();
    }
}

// Below about 20 us of work waking other threads costs more than they bring.
bool is_tiny(const AttentionParams& p) {
  int64_t products = 0, keys = 0;
  for (int64_t i = 0; i < p.batch.num_requests; ++i) {
    const int64_t q_len = p.batch.cu_seqlens_q[i + 1] - p.batch.cu_seqlens_q[i];
    products += q_len * p.batch.seq_lens[i];
    keys += p.batch.seq_lens[i];
  }
  const int64_t dims = p.head_dim + p.head_dim_v;
  return products * p.num_q_heads * dims < 1 << 20 && keys * p.num_kv_heads * dims < 1 << 17;
}

// A decode item spans all KV heads where those of a token lie together (NHD), one where those of a page do not (HND).
bool heads_inside_tokens(const PagedPool& pool, int64_t num_kv_heads) {
  return num_kv_heads > 1 && std::llabs(pool.stride_head) < std::llabs(pool.stride_slot);
}

}  // namespace

const IsaTable* isa_table(const char* name) {
  const IsaTable* const all[] = {
#if defined(__x86_64__)
      &avx512bf16::kTable, &avx512bf16::kFloatTable, &avx512::kTable, &avx2::kTable,
#endif
      &portable::kTable};
  for (const IsaTable* table : all) {
    if (!table->supported()) continue;
    if (name && *name ? std::strcmp(name, table->name) == 0 : table->suits()) return table;
  }
  return nullptr;
}

int64_t largest_tile(const AttentionParams& p, const IsaTable& isa, const Settings& settings, int num_threads) {
  // Queries and sums of an item stay in L2 beside a staged block; with few rows, smaller items keep all threads busy.
  const int64_t row_bytes = p.head_dim * (p.dtype == DType::kBF16 ? 2 : 4) + p.head_dim_v * 4;
  const int64_t most = (settings.tile_kib << 10) / row_bytes / isa.tile_rows * isa.tile_rows;
  const int64_t rows = p.num_tokens * p.num_q_heads;
  const int64_t fair = round_up(ceil_div(rows, num_threads * settings.tile_share), isa.tile_rows);
  return std::max(isa.tile_rows, std::min(most, std::max(fair, 2 * isa.tile_rows)));
}

PlanSpec plan_spec(const AttentionParams& p, const IsaTable& isa, const Settings& settings, int num_threads,
                   int64_t num_splits) {
  PlanSpec spec;
  spec.num_q_heads = p.num_q_heads;
  spec.num_kv_heads = p.num_kv_heads;
  spec.causal = p.causal;
  spec.window_left = p.window_left < 0 ? -1 : p.window_left;
  spec.window_right = p.window_right < 0 ? -1 : p.window_right;
  spec.invariant = p.invariant;
  spec.invariant_split = kInvariantSplit;
  // Invariant splits are the arithmetic itself: a caller's number of splits must not move them.
  spec.num_splits = p.invariant ? 0 : num_splits;
  spec.num_workers = settings.threads ? std::min<int64_t>(settings.threads, num_threads) : num_threads;
  spec.items_per_worker = settings.items_per_worker;
  spec.min_split = settings.min_split;
  spec.decode_rows = settings.decode_rows;
  spec.decode_heads = heads_inside_tokens(p.k, p.num_kv_heads) ? p.num_kv_heads : 1;
  // Equal items leave no thread waiting for the last one.
  const int64_t tile = largest_tile(p, isa, settings, static_cast<int>(spec.num_workers));
  const int64_t head_rows = std::max<int64_t>(p.num_tokens * spec.group(), 1);
  spec.tile_rows = round_up(ceil_div(head_rows, ceil_div(head_rows, tile)), isa.tile_rows);
  return spec;
}

int64_t most_partial_rows(const AttentionParams& p, const IsaTable& isa, const std::vector<Settings>& settings,
                          int num_threads, int64_t num_splits, int64_t max_kv_len) {
  int64_t most = 0;
  for (const Settings& one : settings) {
    PlanSpec spec = plan_spec(p, isa, one, num_threads, num_splits);
    spec.tile_rows = largest_tile(p, isa, one, static_cast<int>(spec.num_workers));  // fewer tokens may take this one
    most = std::max(most, max_partial_rows(spec, p.num_tokens, max_kv_len));
  }
  return most;
}

int64_t workspace_bytes(int64_t partial_rows, int64_t head_dim_v) {
  return partial_rows * (head_dim_v + 2) * static_cast<int64_t>(sizeof(float));
}

void attention(const AttentionParams& params, const IsaTable& isa, const Settings& settings, int num_threads,
               int64_t num_splits, const int64_t* plan, void* workspace, int64_t workspace_size) {
  if (num_threads < 1) num_threads = 1;
  const PlanSpec spec = plan_spec(params, isa, settings, num_threads, num_splits);
  check_batch(params);
  if (plan) {
    check_plan(params, spec, plan);
  } else {
    int64_t* words =
        reinterpret_cast<int64_t*>(kept_plan.at_least(plan_words(params.batch.num_requests) * sizeof(int64_t)));
    make_plan(spec, params.batch.cu_seqlens_q, params.batch.seq_lens, params.batch.num_requests, words);
    plan = words;
  }
  const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(plan);

  float* partials = nullptr;
  std::atomic<int32_t>* arrivals = nullptr;
  if (header.partial_rows > 0) {
    const int64_t bytes = workspace_bytes(header.partial_rows, params.head_dim_v);
    if (workspace && workspace_size < bytes)
      throw std::invalid_argument("workspace: expected at least " + std::to_string(bytes) + " bytes, got " +
                                  std::to_string(workspace_size));
    partials = reinterpret_cast<float*>(workspace ? static_cast<char*>(workspace) : kept_partials.at_least(bytes));
    const int64_t items = header.decode_total + header.prefill_total;
    arrivals = reinterpret_cast<std::atomic<int32_t>*>(kept_arrivals.at_least(items * sizeof(std::atomic<int32_t>)));
    for (int64_t i = 0; i < items; ++i) new (&arrivals[i]) std::atomic<int32_t>(0);
  }

  fill_padding(params);
  Call call{params, isa, Plan(plan), partials, arrivals, isa.scratch_bytes(params, header.spec), {}};
  const int64_t items = header.decode_total + header.prefill_total;
  const int64_t workers = std::min<int64_t>(num_threads, header.spec.num_workers);
  const int threads = is_tiny(params) ? 1 : static_cast<int>(std::min(workers, items));
  if (threads <= 1) {
    call.work(0);
  } else {
#pragma omp parallel num_threads(threads)
    call.work(omp_get_thread_num());
  }
  if (call.queues.out_of_memory) throw std::bad_alloc();
}

}  // namespace chunkattn
