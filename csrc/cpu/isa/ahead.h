// Prefetching beside arithmetic.
#pragma once
#include "rows.h"

namespace chunkattn {
namespace CHUNKATTN_ISA {

// Rows that will be needed soon, asked for in small portions between products: all at once they would fill the core's
// miss buffers and stall it. The first line of each row comes before the rest of any: several lines of a page whose
// address translation is still on its way stall the core as well.
template <int64_t kCapacity>
class Ahead {
 public:
  void clear() { count_ = lines_ = first_ = row_ = 0, byte_ = kLine; }
  void add(const char* row, int64_t bytes) {
    rows_[count_++] = {row, bytes};
    lines_ += (bytes + kLine - 1) / kLine;
  }
  // One of `steps` equal portions.
  void ask(int64_t steps) {
    int64_t portion = (lines_ + steps - 1) / steps;
    for (; portion > 0 && first_ < count_; --portion) __builtin_prefetch(rows_[first_++].data, 0, kPrefetchLocality);
    while (portion > 0 && row_ < count_) {
      const Row row = rows_[row_];
      for (; portion > 0 && byte_ < row.bytes; --portion, byte_ += kLine)
        __builtin_prefetch(row.data + byte_, 0, kPrefetchLocality);
      if (byte_ >= row.bytes) ++row_, byte_ = kLine;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  struct Row {
    const char* data;
    int64_t bytes;
  };
  Row rows_[kCapacity];
  int64_t count_ = 0, lines_ = 0;
  int64_t first_ = 0;               // rows whose first line was asked for
  int64_t row_ = 0, byte_ = kLine;  // where the rest goes on
};

}  // namespace CHUNKATTN_ISA
}  // namespace chunkattn
