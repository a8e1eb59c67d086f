#include <algorithm>
#include <vector>

#include "kernels/alignment.h"
#include "kernels/library.h"
#include "kernels/pages/kernel.cuh"

namespace chunkattn::pages {
namespace {

struct Dim {
  int64_t size, source_stride, target_stride;  // strides in bytes
};

// The dims inside a page in the source's order of memory, with those that are contiguous in both blocks made one.
std::vector<Dim> merged_dims(const PageParams& p) {
  std::vector<Dim> dims;
  for (int d = 1; d < p.num_dims; ++d)
    if (p.size[d] != 1)
      dims.push_back({p.size[d], p.source.stride[d] * p.element_size, p.target.stride[d] * p.element_size});
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) {
    return a.source_stride != b.source_stride ? a.source_stride < b.source_stride : a.target_stride < b.target_stride;
  });
  std::vector<Dim> merged = {{p.element_size, 1, 1}};
  for (const Dim& dim : dims) {
    Dim& last = merged.back();
    if (dim.source_stride == last.size * last.source_stride && dim.target_stride == last.size * last.target_stride)
      last.size *= dim.size;
    else
      merged.push_back(dim);
  }
  return merged;
}

// The widest access that the run of bytes, both addresses and all strides allow.
int widest_pack(const PageParams& p, const std::vector<Dim>& dims) {
  int bytes = 16;
  const auto fits = [&] {
    if (dims[0].size % bytes || !is_aligned(p.source.data, bytes) || !is_aligned(p.target.data, bytes)) return false;
    if (!is_multiple(p.source.stride[0] * p.element_size, bytes)) return false;
    if (!is_multiple(p.target.stride[0] * p.element_size, bytes)) return false;
    return std::all_of(dims.begin() + 1, dims.end(), [&](const Dim& dim) {
      return dim.source_stride % bytes == 0 && dim.target_stride % bytes == 0;
    });
  };
  while (!fits()) bytes /= 2;
  return bytes;
}

template <int kBytes>
int32_t launch(const PageParams& p, const PageLayout& layout, cudaStream_t stream) {
  const int64_t blocks = p.count * layout.blocks_per_page;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  move_pages<kBytes><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p, layout);
  return cudaGetLastError();
}

int32_t move(const PageParams& p, cudaStream_t stream) {
  const std::vector<Dim> dims = merged_dims(p);
  const int bytes = widest_pack(p, dims);
  if (dims.size() > kMaxDims) return cudaErrorInvalidValue;
  PageLayout layout;
  layout.num_dims = static_cast<int32_t>(dims.size());
  int64_t packs = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t unit = d ? 1 : bytes;
    packs *= dims[d].size / unit;
    if (packs > INT32_MAX) return cudaErrorInvalidConfiguration;
    layout.size[d] = static_cast<uint32_t>(dims[d].size / unit);
    layout.source_stride[d] = dims[d].source_stride * unit, layout.target_stride[d] = dims[d].target_stride * unit;
  }
  layout.packs = static_cast<uint32_t>(packs);
  layout.blocks_per_page = static_cast<uint32_t>((packs + kPacksPerBlock - 1) / kPacksPerBlock);
  switch (bytes) {
    case 16: return launch<16>(p, layout, stream);
    case 8: return launch<8>(p, layout, stream);
    case 4: return launch<4>(p, layout, stream);
    case 2: return launch<2>(p, layout, stream);
    default: return launch<1>(p, layout, stream);
  }
}

}  // namespace
}  // namespace chunkattn::pages

CHUNKATTN_EXPORT int32_t chunkattn_pages(const chunkattn::PageParams* p, const chunkattn::LaunchContext* context) {
  if (p->count == 0) return cudaSuccess;
  for (int d = 1; d < p->num_dims; ++d)
    if (p->size[d] == 0) return cudaSuccess;
  return chunkattn::pages::move(*p, static_cast<cudaStream_t>(context->stream));
}
