// Reads torch tensors through DLPack's C table or their Python attributes, so that the core needs no libtorch.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "chunkattn/core/params.h"

namespace chunkattn {

namespace py = pybind11;

constexpr int kMaxTensorDims = 8;

enum class ElementType { kFloat, kInt32, kInt64, kUInt8, kOther };

struct Tensor {
  void* data = nullptr;  // nullptr also for an empty tensor
  ElementType type = ElementType::kOther;
  DType dtype = DType::kF32;  // where type is kFloat, and for int8 KV
  int64_t element_size = 0;
  int num_dims = 0;
  int64_t size[kMaxTensorDims] = {};
  int64_t stride[kMaxTensorDims] = {};  // elements
  bool given = false;                   // false for None

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// `rank` < 0 accepts any. Throws TypeError/ValueError "{arg}: expected …, got …".
Tensor read_tensor(const char* arg, PyObject* object, int rank);
Tensor read_tensor(const char* arg, PyObject* object, int rank, ElementType type);
// None gives a Tensor with `given` false.
Tensor read_optional(const char* arg, PyObject* object, int rank, ElementType type);

// int32 or int64 ids in one dimension; the second also takes None.
Tensor read_index(const char* arg, PyObject* object);
Tensor read_any_index(const char* arg, py::handle object);

// Of a dtype that a cache can have, of any rank.
Tensor read_pages(const char* arg, PyObject* object);

// While one lives, tensors on a GPU are read too: what is filled goes to a GPU launcher and not to the CPU's code.
class DeviceTensors {
 public:
  DeviceTensors();
  ~DeviceTensors();
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;
};

// A torch dtype that q can have.
DType read_dtype(const char* arg, PyObject* object);
// A torch dtype that a cache can have.
DType read_kv_dtype(const char* arg, PyObject* object);

// Looks up torch's classes; call once at import.
void load_torch();

// Reads tensors through Python attributes from now on, as with a torch that lacks DLPack's exchange table (for tests).
void read_through_attributes();

}  // namespace chunkattn
