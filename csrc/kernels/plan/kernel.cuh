// plan: chunkattn/sched/plan.h on the device, the same words. One pass for what the split lengths depend on, one for
// the tables; checksums are sums of mixed words, so that threads may add them up in any order.
#pragma once
#include "kernels/launch.h"
#include "kernels/plan/block_sums.cuh"

namespace chunkattn::planning {

__device__ inline Words<5> as_words(const StepWork& work) {
  return {{work.decode_units, work.decode_keys, work.prefill_units, work.prefill_keys, work.longest}};
}
__device__ inline StepWork as_work(const Words<5>& words) {
  return {words.item[0], words.item[1], words.item[2], words.item[3], words.item[4]};
}

struct Lengths {
  int64_t end, q_len, kv_len;
};

__device__ inline Lengths lengths_of(const PlanParams& p, int64_t request) {
  const int64_t begin = p.cu_seqlens_q[request], end = p.cu_seqlens_q[request + 1];
  return {end, end - begin, p.seq_lens[request]};
}

// Writes a word of the tables and returns its part of their checksum.
__device__ inline uint64_t put(int64_t* tables, int64_t index, int64_t word) {
  tables[index] = word;
  return checksum_term(index, word);
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const PlanParams p) {
  __shared__ Words<5> work_scratch[kWarps];
  __shared__ Words<3> sum_scratch[2][kWarps];  // two: a round may begin while the one before is still being read
  __shared__ Words<2> checksum_scratch[kWarps];
  __shared__ SplitLengths shared_lengths_chosen;
  const int64_t n = p.num_requests;

  StepWork work;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const Lengths request = lengths_of(p, i);
    add_request(p.spec, request.q_len, request.kv_len, &work);
  }
  const auto join = [](int i, int64_t a, int64_t b) { return i == 4 ? larger_of(a, b) : a + b; };
  const Words<5> all = reduce(as_words(work), join, work_scratch);
  if (threadIdx.x == 0) shared_lengths_chosen = choose_splits(p.spec, as_work(all));
  __syncthreads();
  const SplitLengths chosen = shared_lengths_chosen;

  int64_t* tables = p.words + kPlanHeaderWords;
  uint64_t tables_sum = 0, lengths_sum = 0;
  if (threadIdx.x < 3) tables_sum += put(tables, threadIdx.x * (n + 1), 0);
  Words<3> before;  // totals of the rounds so far
  for (int64_t first = 0, round = 0; first < n; first += kThreads, ++round) {
    const int64_t i = first + threadIdx.x;
    Words<3> sums;
    if (i < n) {
      const Lengths request = lengths_of(p, i);
      const RequestShare share = request_share(p.spec, chosen, request.q_len, request.kv_len);
      sums = {{share.decode_items, share.prefill_items, share.partial_rows}};
      tables_sum += put(tables, 3 * (n + 1) + i, share.split_len);
      lengths_sum += checksum_term(2 * i, request.end) + checksum_term(2 * i + 1, request.kv_len);
    }
    const Words<3> round_total = prefix_sums(&sums, sum_scratch[round % 2]);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (i < n) tables_sum += put(tables, k * (n + 1) + i + 1, before.item[k] + sums.item[k]);
      before.item[k] += round_total.item[k];
    }
  }

  const Words<2> mine = {{static_cast<int64_t>(tables_sum), static_cast<int64_t>(lengths_sum)}};
  const Words<2> checksums = reduce(mine, [](int, int64_t a, int64_t b) { return a + b; }, checksum_scratch);
  if (threadIdx.x != 0) return;
  PlanHeader& header = *reinterpret_cast<PlanHeader*>(p.words);
  header.magic = kPlanMagic;
  header.num_requests = n;
  header.num_tokens = p.cu_seqlens_q[n];
  header.decode_total = before.item[0];
  header.prefill_total = before.item[1];
  header.partial_rows = before.item[2];
  header.tables_checksum = checksums.item[0];
  header.lengths_checksum = checksums.item[1];
  header.spec = p.spec;
}

}  // namespace chunkattn::planning
