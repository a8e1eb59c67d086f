#include "tensor.h"

#include <algorithm>

#include "dlpack.h"

namespace chunkattn {
namespace {

struct KnownDtype {
  const char* name;
  uint8_t code;  // DLPack's
  ElementType type;
  DType dtype;
  int64_t element_size;
  PyObject* object;
};

// The common ones first: the search is linear.
KnownDtype known[] = {
    {"bfloat16", dlpack::kBFloat, ElementType::kFloat, DType::kBF16, 2, nullptr},
    {"float32", dlpack::kFloat, ElementType::kFloat, DType::kF32, 4, nullptr},
    {"int32", dlpack::kInt, ElementType::kInt32, DType::kF32, 4, nullptr},
    {"float16", dlpack::kFloat, ElementType::kFloat, DType::kF16, 2, nullptr},
    {"int64", dlpack::kInt, ElementType::kInt64, DType::kF32, 8, nullptr},
    {"int8", dlpack::kInt, ElementType::kFloat, DType::kI8, 1, nullptr},
    {"float8_e4m3fn", dlpack::kFloat8E4M3FN, ElementType::kFloat, DType::kE4M3, 1, nullptr},
    {"float8_e5m2", dlpack::kFloat8E5M2, ElementType::kFloat, DType::kE5M2, 1, nullptr},
    {"uint8", dlpack::kUInt, ElementType::kUInt8, DType::kF32, 1, nullptr},
};

// torch's exchange table; nullptr where this torch has none of our version.
const dlpack::ExchangeApi* exchange = nullptr;
PyTypeObject* tensor_class = nullptr;
bool device_tensors = false;  // guarded by the GIL

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

const char* type_name(ElementType type) {
  switch (type) {
    case ElementType::kFloat: return "a floating-point tensor";
    case ElementType::kInt32: return "torch.int32";
    case ElementType::kInt64: return "torch.int64";
    case ElementType::kUInt8: return "torch.uint8";
    default: return "another dtype";
  }
}

std::string dtype_name(PyObject* tensor) { return py::str(py::handle(tensor).attr("dtype")); }

// Owns one reference.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {
    if (!object_) throw py::error_already_set();
  }
  ~Owned() { Py_DECREF(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

void read_integers(const char* arg, PyObject* tuple, int64_t* values, int* count) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > kMaxTensorDims)
    throw py::value_error(std::string(arg) + ": expected at most 8 dimensions, got more");
  *count = static_cast<int>(PyTuple_GET_SIZE(tuple));
  for (int i = 0; i < *count; ++i) {
    values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (values[i] == -1 && PyErr_Occurred()) throw py::error_already_set();
  }
}

const dlpack::ExchangeApi* find_exchange(const py::object& tensor_type) {
  const py::object capsule = py::getattr(tensor_type, "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api && api->major_version != dlpack::kMajorVersion) api = api->previous;
  return api && api->tensor_from_py_object ? api : nullptr;
}

void set_dtype(Tensor& tensor, const KnownDtype& entry) {
  tensor.type = entry.type;
  tensor.dtype = entry.dtype;
  tensor.element_size = entry.element_size;
}

// About 30 ns, a tenth of what attributes cost.
Tensor read_record(const char* arg, PyObject* object) {
  dlpack::TensorRecord record;
  if (exchange->tensor_from_py_object(object, &record) != 0) throw py::error_already_set();
  if (record.device_type != dlpack::kCpu && record.device_type != dlpack::kCudaHost &&
      record.device_type != dlpack::kRocmHost && !device_tensors)
    throw py::value_error(std::string(arg) + ": expected a tensor on the CPU, got one on another device");
  if (record.num_dims > kMaxTensorDims)
    throw py::value_error(std::string(arg) + ": expected at most 8 dimensions, got " + std::to_string(record.num_dims));
  Tensor tensor;
  tensor.num_dims = record.num_dims;
  std::copy(record.shape, record.shape + record.num_dims, tensor.size);
  std::copy(record.strides, record.strides + record.num_dims, tensor.stride);
  tensor.data = record.data ? static_cast<char*>(record.data) + record.byte_offset : nullptr;
  for (const KnownDtype& entry : known) {
    if (entry.code != record.dtype.code || entry.element_size * 8 != record.dtype.bits) continue;
    set_dtype(tensor, entry);
    break;
  }
  return tensor;
}

Tensor read_attributes(const char* arg, PyObject* object) {
  static PyObject* const shape_name = interned("shape");
  static PyObject* const stride_name = interned("stride");
  static PyObject* const dtype_name = interned("dtype");
  static PyObject* const data_ptr_name = interned("data_ptr");
  Tensor tensor;
  const Owned shape(PyObject_GetAttr(object, shape_name));
  read_integers(arg, shape.get(), tensor.size, &tensor.num_dims);
  const Owned stride(PyObject_CallMethodNoArgs(object, stride_name));
  int strides = 0;
  read_integers(arg, stride.get(), tensor.stride, &strides);
  const Owned dtype(PyObject_GetAttr(object, dtype_name));
  for (const KnownDtype& entry : known) {
    if (entry.object != dtype.get()) continue;
    set_dtype(tensor, entry);
    break;
  }
  const Owned data(PyObject_CallMethodNoArgs(object, data_ptr_name));
  tensor.data = PyLong_AsVoidPtr(data.get());
  if (PyErr_Occurred()) throw py::error_already_set();
  return tensor;
}

}  // namespace

void load_torch() {
  const py::module_ torch = py::module_::import("torch");
  for (KnownDtype& entry : known) entry.object = py::object(torch.attr(entry.name)).release().ptr();
  py::object tensor_type = torch.attr("Tensor");
  exchange = find_exchange(tensor_type);
  tensor_class = reinterpret_cast<PyTypeObject*>(tensor_type.release().ptr());
}

void read_through_attributes() { exchange = nullptr; }

DeviceTensors::DeviceTensors() { device_tensors = true; }
DeviceTensors::~DeviceTensors() { device_tensors = false; }

Tensor read_index(const char* arg, PyObject* object) {
  const Tensor index = read_tensor(arg, object, 1);
  if (index.type != ElementType::kInt32 && index.type != ElementType::kInt64)
    throw py::type_error(std::string(arg) + ": expected torch.int32 or torch.int64, got " + dtype_name(object));
  return index;
}

Tensor read_any_index(const char* arg, py::handle object) {
  return object.is_none() ? Tensor{} : read_index(arg, object.ptr());
}

Tensor read_tensor(const char* arg, PyObject* object, int rank) {
  if (!PyObject_TypeCheck(object, tensor_class))
    throw py::type_error(std::string(arg) + ": expected a tensor, got " + Py_TYPE(object)->tp_name);
  Tensor tensor = exchange ? read_record(arg, object) : read_attributes(arg, object);
  if (rank >= 0 && tensor.num_dims != rank)
    throw py::value_error(std::string(arg) + ": expected " + std::to_string(rank) + " dimensions, got " +
                          std::to_string(tensor.num_dims));
  if (!tensor.data && std::find(tensor.size, tensor.size + tensor.num_dims, 0) == tensor.size + tensor.num_dims)
    throw py::value_error(std::string(arg) + ": expected a tensor that holds numbers, got one without memory");
  tensor.given = true;
  return tensor;
}

Tensor read_tensor(const char* arg, PyObject* object, int rank, ElementType type) {
  Tensor tensor = read_tensor(arg, object, rank);
  if (tensor.type != type)
    throw py::type_error(std::string(arg) + ": expected " + type_name(type) + ", got " + dtype_name(object));
  return tensor;
}

DType read_dtype(const char* arg, PyObject* object) {
  for (const KnownDtype& entry : known)
    if (entry.object == object && entry.type == ElementType::kFloat && entry.element_size > 1) return entry.dtype;
  throw py::type_error(std::string(arg) + ": expected torch.bfloat16, float16 or float32, got " +
                       std::string(py::str(py::handle(object))));
}

DType read_kv_dtype(const char* arg, PyObject* object) {
  for (const KnownDtype& entry : known)
    if (entry.object == object && entry.type == ElementType::kFloat) return entry.dtype;
  throw py::type_error(std::string(arg) + ": expected a dtype that a KV cache can have, got " +
                       std::string(py::str(py::handle(object))));
}

Tensor read_pages(const char* arg, PyObject* object) {
  const Tensor pages = read_tensor(arg, object, -1);
  if (!pages.element_size)
    throw py::type_error(std::string(arg) + ": expected a dtype that a KV cache can have, got " + dtype_name(object));
  return pages;
}

Tensor read_optional(const char* arg, PyObject* object, int rank, ElementType type) {
  return object == Py_None ? Tensor{} : read_tensor(arg, object, rank, type);
}

}  // namespace chunkattn
