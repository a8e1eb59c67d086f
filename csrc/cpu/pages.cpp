#include "pages.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "checks.h"

namespace chunkattn {
namespace {

int64_t page_id(const PageBlock& block, int64_t index) {
  if (!block.pages) return index;
  return block.pages_are_64 ? static_cast<const int64_t*>(block.pages)[index * block.pages_stride]
                            : static_cast<const int32_t*>(block.pages)[index * block.pages_stride];
}

std::vector<int64_t> sorted_ids(const PageBlock& block, int64_t count) {
  std::vector<int64_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = page_id(block, i);
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Copies dims [dim, num_dims); dims from `dense` on are contiguous in both.
void copy_block(const PageShape& shape, int dim, int dense, int64_t dense_bytes, const char* source,
                const int64_t* source_stride, char* target, const int64_t* target_stride) {
  if (dim == dense) {
    std::memcpy(target, source, dense_bytes);
    return;
  }
  for (int64_t i = 0; i < shape.size[dim]; ++i)
    copy_block(shape, dim + 1, dense, dense_bytes, source + i * source_stride[dim] * shape.element_size, source_stride,
               target + i * target_stride[dim] * shape.element_size, target_stride);
}

}  // namespace

void check_page_ids(const char* arg, const PageBlock& block, int64_t count, int64_t num_pages, bool written) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t page = page_id(block, i);
    if (page < 0 || page >= num_pages)
      refuse(std::string(arg) + ": expected " + pool_ids(num_pages, "page id") + ", got " + std::to_string(page) +
             " at index " + std::to_string(i));
  }
  if (!written) return;
  const std::vector<int64_t> ids = sorted_ids(block, count);
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end())
    refuse(std::string(arg) + ": expected every page at most once, got " + std::to_string(*twice) + " repeated");
}

void check_disjoint(const char* arg, const PageBlock& target, const PageBlock& source, int64_t count) {
  const std::vector<int64_t> written = sorted_ids(target, count), read = sorted_ids(source, count);
  for (const int64_t page : written)
    if (std::binary_search(read.begin(), read.end(), page))
      refuse(std::string(arg) + ": expected pages that are not also sources, got " + std::to_string(page));
}

void copy_pages(const PageShape& shape, const PageBlock& source, const PageBlock& target, int num_threads) {
  int dense = shape.num_dims;
  int64_t elements = 1;
  while (dense > 1 &&
         (shape.size[dense - 1] == 1 || (source.stride[dense - 1] == elements && target.stride[dense - 1] == elements)))
    elements *= shape.size[--dense];
  for (int d = 1; d < shape.num_dims; ++d)
    if (shape.size[d] == 0) return;
  const int64_t size = shape.element_size;
#pragma omp parallel for num_threads(num_threads) schedule(static) if (shape.count > 1)
  for (int64_t i = 0; i < shape.count; ++i)
    copy_block(shape, 1, dense, elements * size, source.data + page_id(source, i) * source.stride[0] * size,
               source.stride, target.data + page_id(target, i) * target.stride[0] * size, target.stride);
}

}  // namespace chunkattn
