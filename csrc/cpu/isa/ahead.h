// Prefetching beside arithmetic.
#pragma once
#include "rows.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// Rows that will be needed soon, asked for in small portions between products: all at once they would fill the core's
// miss buffers and stall it.
template <int64_t kCapacity>
class Ahead {
 public:
  void clear() { count_ = asked_ = 0; }
  void add(const char* row, int64_t bytes) { rows_[count_++] = {row, bytes}; }
  // One of `steps` equal portions.
  void ask(int64_t steps) {
    const int64_t stop = min_of(count_, asked_ + (count_ + steps - 1) / steps);
    for (; asked_ < stop; ++asked_)
      for (int64_t byte = 0; byte < rows_[asked_].bytes; byte += 64)
        __builtin_prefetch(rows_[asked_].data + byte, 0, kPrefetchLocality);
  }

 private:
  struct Row {
    const char* data;
    int64_t bytes;
  };
  Row rows_[kCapacity];
  int64_t count_ = 0, asked_ = 0;
};

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
