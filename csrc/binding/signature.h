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
  // Where the range of addresses of a written tensor (one of the first `written`) crosses another's: how far apart the
  // two start. Whether they share an element then depends on nothing that is not here, so that validation need not look
  // again.
  template <size_t kCount>
  void add_crossings(const std::array<const Tensor*, kCount>& tensors, size_t written) {
    std::array<int64_t, kCount> begin, end;
    for (size_t i = 0; i < kCount; ++i) {
      begin[i] = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensors[i]->data));
      end[i] = begin[i] + span_of(*tensors[i]);
    }
    for (size_t i = 0; i < written; ++i)
      for (size_t j = i + 1; j < kCount; ++j)
        if (begin[i] < end[j] && begin[j] < end[i]) add(static_cast<int64_t>(i * kCount + j)), add(begin[j] - begin[i]);
  }
  bool operator==(const Signature& other) const { return words_ == other.words_; }

 private:
  // Bytes from the first element to past the last.
  static int64_t span_of(const Tensor& tensor) {
    if (!tensor.data) return 0;
    int64_t last = 0;
    for (int i = 0; i < tensor.num_dims; ++i) {
      if (tensor.size[i] == 0) return 0;
      last += (tensor.size[i] - 1) * tensor.stride[i];
    }
    return (last + 1) * tensor.element_size;
  }

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
