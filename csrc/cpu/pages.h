// Copies of whole pages between strided blocks.
#pragma once
#include <cstdint>

namespace chunkattn {

constexpr int kMaxPageDims = 8;

// [n, …] with any strides; page ids index the first dim (nullptr: pages in order).
struct PageBlock {
  char* data = nullptr;
  int64_t stride[kMaxPageDims] = {};  // elements
  const void* pages = nullptr;        // [n] int32 or int64, may be nullptr
  bool pages_are_64 = false;
  int64_t pages_stride = 1;
};

struct PageShape {
  int64_t count = 0;                // pages copied
  int num_dims = 1;                 // with the page dim
  int64_t size[kMaxPageDims] = {};  // size[0] unused
  int64_t element_size = 1;         // bytes
};

// Throws std::invalid_argument unless 0 <= id < num_pages for all ids; `written` also wants every id once.
void check_page_ids(const char* arg, const PageBlock& block, int64_t count, int64_t num_pages, bool written);

// No page may be both read and written.
void check_disjoint(const char* arg, const PageBlock& target, const PageBlock& source, int64_t count);

void copy_pages(const PageShape& shape, const PageBlock& source, const PageBlock& target, int num_threads);

}  // namespace chunkattn
