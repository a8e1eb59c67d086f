// The part of DLPack's C exchange API (version 1.3) that reads a tensor without owning it. torch publishes the table in
// torch.Tensor.__dlpack_c_exchange_api__; its layout is stable within a major version.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once
#include <cstdint>

namespace chunkattn::dlpack {

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct TensorRecord {
  void* data;
  int32_t device_type, device_id;
  int32_t num_dims;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct ExchangeApi {
  uint32_t major_version, minor_version;
  ExchangeApi* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  int (*tensor_from_py_object)(void* py_object, TensorRecord* out);  // may be nullptr
  void* current_work_stream;
};

constexpr uint32_t kMajorVersion = 1;
constexpr int32_t kCpu = 1, kCudaHost = 3, kRocmHost = 11;  // the latter two: pinned memory
constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kFloat8E4M3FN = 10, kFloat8E5M2 = 12;

}  // namespace chunkattn::dlpack
