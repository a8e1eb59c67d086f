// What validation looks at, as a string of words that can be compared.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tensor.h"

namespace chunkattn {

class Signature {
 public:
  void add(int64_t word) { words_.push_back(word); }
  void add(double value) {
    int64_t word;
    std::memcpy(&word, &value, sizeof(word));
    add(word);
  }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    for (const char letter : text) add(static_cast<int64_t>(letter));
  }
  // Everything but the data pointer.
  void add(const Tensor& tensor) {
    add(static_cast<int64_t>(tensor.given) << 32 | static_cast<int64_t>(tensor.type) << 24 |
        static_cast<int64_t>(tensor.dtype) << 16 | tensor.num_dims);
    words_.insert(words_.end(), tensor.size, tensor.size + tensor.num_dims);
    words_.insert(words_.end(), tensor.stride, tensor.stride + tensor.num_dims);
  }
  bool operator==(const Signature& other) const { return words_ == other.words_; }

 private:
  std::vector<int64_t> words_;
};

// The last few distinct signatures.
class SignatureCache {
 public:
  bool contains(const Signature& signature) const {
    for (const Signature& entry : entries_)
      if (entry == signature) return true;
    return false;
  }
  void insert(const Signature& signature) {
    if (contains(signature)) return;
    entries_[next_] = signature;
    next_ = (next_ + 1) % entries_.size();
  }

 private:
  std::array<Signature, 8> entries_;
  size_t next_ = 0;
};

}  // namespace chunkattn
