// Memory that a thread keeps between calls, handed out piece by piece.
#pragma once
#include <cstdint>

namespace chunkattn {

// Cuts pieces, aligned to cache lines, off a block of memory; over nullptr it only measures.
class Scratch {
 public:
  explicit Scratch(char* base) : base_(base) {}

  template <class T>
  __attribute__((always_inline)) T* take(int64_t count) {
    char* piece = base_ ? base_ + used_ : nullptr;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  __attribute__((always_inline)) int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace chunkattn
