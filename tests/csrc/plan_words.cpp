// Reads specs and lengths, writes the words of their plans and the bound of their partial rows; one case a line.
#include <cstdio>
#include <cstring>
#include <vector>

#include "chunkattn/sched/plan.h"

int main() {
  long long value;
  while (std::scanf("%lld", &value) == 1) {  // requests, spec words, cu_seqlens_q, seq_lens
    const int64_t count = value;
    int64_t spec_words[chunkattn::kPlanSpecWords];
    for (int64_t& word : spec_words) {
      if (std::scanf("%lld", &value) != 1) return 1;
      word = value;
    }
    chunkattn::PlanSpec spec;
    std::memcpy(&spec, spec_words, sizeof spec);
    std::vector<int32_t> lengths(2 * count + 1);
    int64_t longest = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (std::scanf("%lld", &value) != 1) return 1;
      lengths[i] = static_cast<int32_t>(value);
      if (static_cast<int64_t>(i) > count && value > longest) longest = value;
    }
    std::vector<int64_t> words(chunkattn::plan_words(count));
    chunkattn::make_plan(spec, lengths.data(), lengths.data() + count + 1, count, words.data());
    for (const int64_t word : words) std::printf("%lld ", static_cast<long long>(word));
    std::printf("%lld\n", static_cast<long long>(chunkattn::max_partial_rows(spec, lengths[count], longest)));
  }
}
