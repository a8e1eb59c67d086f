// Stand-in for libcudart: enough of its ABI for host code compiled by nvcc to launch into the emulator.
//
// What the host code computes (grids, shared-memory sizes, parameter structs, tensor maps) is thereby under
// test too. "Device memory" is host memory. Load it with RTLD_GLOBAL before the library under test, which is
// linked with -cudart none (or against libcudart.so, whose soname this library carries).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tensor_map_encoder.h"

namespace {

struct LaunchRequest {
  int module;
  const char* kernel;
  unsigned grid[3], block[3], cluster[3];
  unsigned dynamic_shared;
  void** arguments;
};
/// Returns 0, or a cudaError_t.
using LaunchCallback = int (*)(const LaunchRequest*);
LaunchCallback launch_callback = nullptr;

/// Properties of the device that host code asks for; set by emu_set_device.
int compute_major = 9, compute_minor = 0, multiprocessors = 4;
constexpr int kDefaultShared = 48 * 1024;
int max_shared() { return compute_major >= 9 ? 227 * 1024 : 163 * 1024; }

struct Kernel {
  int module;
  std::string name;
  int max_dynamic_shared = kDefaultShared;
  bool non_portable_cluster = false;
};
std::map<const void*, Kernel>& kernels() {  // by the address of the host stub
  static std::map<const void*, Kernel> table;
  return table;
}

struct Module {
  const void* fatbin;
};
std::vector<Module>& modules() {
  static std::vector<Module> list;
  return list;
}

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
std::vector<CallConfiguration> call_stack;  // between <<<...>>> and the stub that launches

std::map<std::uintptr_t, std::size_t> allocations;  // of cudaMalloc
cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t launch(const void* stub, dim3 grid, dim3 block, dim3 cluster, void** arguments, size_t shared) {
  const auto found = kernels().find(stub);
  if (found == kernels().end()) return fail(cudaErrorInvalidDeviceFunction);
  const Kernel& kernel = found->second;
  // The real runtime refuses more than 48 KiB unless the attribute was set.
  if (shared > size_t(kernel.max_dynamic_shared)) return fail(cudaErrorInvalidValue);
  const unsigned threads = block.x * block.y * block.z;
  if (!threads || threads > 1024 || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535)
    return fail(cudaErrorInvalidConfiguration);
  if (cluster.x * cluster.y * cluster.z > (kernel.non_portable_cluster ? 16u : 8u))
    return fail(cudaErrorInvalidClusterSize);
  if (!launch_callback) return fail(cudaErrorNotReady);
  const LaunchRequest request{kernel.module,
                              kernel.name.c_str(),
                              {grid.x, grid.y, grid.z},
                              {block.x, block.y, block.z},
                              {cluster.x, cluster.y, cluster.z},
                              unsigned(shared),
                              arguments};
  const int status = launch_callback(&request);
  return status ? fail(cudaError_t(status)) : cudaSuccess;
}

CUresult driver_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

cudaError_t driver_entry(const char* symbol, void** function, cudaDriverEntryPointQueryResult* result) {
  void* found = nullptr;
  if (strcmp(symbol, "cuTensorMapEncodeTiled") == 0) found = reinterpret_cast<void*>(ptxemu::encode_tiled);
  if (strcmp(symbol, "cuDriverGetVersion") == 0) found = reinterpret_cast<void*>(driver_version);
  *function = found;
  if (result) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return found ? cudaSuccess : fail(cudaErrorUnknown);
}

int attribute_of(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: return multiprocessors;  // few: persistent kernels must loop
    case cudaDevAttrComputeCapabilityMajor: return compute_major;
    case cudaDevAttrComputeCapabilityMinor: return compute_minor;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return max_shared();
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return max_shared() + 1024;
    case cudaDevAttrMaxSharedMemoryPerBlock: return kDefaultShared;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrClusterLaunch: return compute_major >= 9;
    case cudaDevAttrCooperativeLaunch: return 1;
    default: return 0;
  }
}

}  // namespace

extern "C" {

// ---------------------------------------------------------------- for the Python side

void emu_set_launch_callback(LaunchCallback callback) { launch_callback = callback; }
void emu_set_device(int major, int minor, int sm_count) {
  compute_major = major;
  compute_minor = minor;
  multiprocessors = sm_count;
}
int emu_module_count() { return int(modules().size()); }
/// The fat binary of a module (header and entries), as nvcc embedded it.
const void* emu_module_fatbin(int module) { return modules()[module].fatbin; }
/// Writes up to capacity (address, size) pairs of live cudaMalloc blocks; returns how many there are.
int emu_allocations(std::uint64_t* pairs, int capacity) {
  int count = 0;
  for (const auto& [address, size] : allocations) {
    if (count < capacity) {
      pairs[2 * count] = address;
      pairs[2 * count + 1] = size;
    }
    count++;
  }
  return count;
}

// ---------------------------------------------------------------- registration by nvcc's static constructors

void** __cudaRegisterFatBinary(void* wrapper) {
  struct FatbinWrapper {
    int magic, version;
    const void* data;
    void* unused;
  };
  modules().push_back({static_cast<const FatbinWrapper*>(wrapper)->data});
  return reinterpret_cast<void**>(modules().size());  // the handle is the module's number, from 1
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void** handle, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Kernel kernel;
  kernel.module = int(reinterpret_cast<std::uintptr_t>(handle)) - 1;
  kernel.name = name;
  kernels()[stub] = kernel;
}

// ---------------------------------------------------------------- launches

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  call_stack.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const CallConfiguration top = call_stack.back();
  call_stack.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  return launch(stub, grid, block, dim3(1, 1, 1), arguments, shared);
}
cudaError_t cudaLaunchCooperativeKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared,
                                        cudaStream_t) {
  return launch(stub, grid, block, dim3(1, 1, 1), arguments, shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  dim3 cluster(1, 1, 1);
  for (unsigned k = 0; k < config->numAttrs; k++)
    if (config->attrs[k].id == cudaLaunchAttributeClusterDimension) {
      const auto& shape = config->attrs[k].val.clusterDim;
      cluster = dim3(shape.x, shape.y, shape.z);
    }
  return launch(stub, config->gridDim, config->blockDim, cluster, arguments, config->dynamicSmemBytes);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t) {
  return launch(reinterpret_cast<const void*>(kernel), grid, block, dim3(1, 1, 1), arguments, shared);
}
cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  const auto found = kernels().find(stub);
  if (found == kernels().end()) return fail(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > max_shared()) return fail(cudaErrorInvalidValue);
    found->second.max_dynamic_shared = value;
  }
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) found->second.non_portable_cluster = value != 0;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 64;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = multiprocessors;
  return cudaSuccess;
}

// ---------------------------------------------------------------- memory

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  void* block = nullptr;
  if (bytes && posix_memalign(&block, 256, bytes)) return fail(cudaErrorMemoryAllocation);
  if (block) {
    memset(block, 0xff, bytes);
    allocations[reinterpret_cast<std::uintptr_t>(block)] = bytes;
  }
  *pointer = block;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer && !allocations.erase(reinterpret_cast<std::uintptr_t>(pointer))) return fail(cudaErrorInvalidValue);
  free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  memset(pointer, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(pointer, value, bytes);
}

// ---------------------------------------------------------------- devices, streams, events, errors

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device ? fail(cudaErrorInvalidDevice) : cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute_of(attribute);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  memset(out, 0, sizeof *out);
  strcpy(out->name, "PTX emulator");
  out->major = compute_major;
  out->minor = compute_minor;
  out->multiProcessorCount = multiprocessors;
  out->warpSize = 32;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsPerMultiProcessor = 2048;
  out->sharedMemPerBlock = kDefaultShared;
  out->sharedMemPerBlockOptin = max_shared();
  out->sharedMemPerMultiprocessor = max_shared() + 1024;
  out->regsPerBlock = out->regsPerMultiprocessor = 65536;
  out->l2CacheSize = 50 << 20;
  out->totalGlobalMem = size_t(1) << 36;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t(1) << 36;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaDeviceSynchronize() { return last_error; }
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return last_error; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return last_error; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1.f;  // there is no time here
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[64];
  snprintf(text, sizeof text, "%s (emulated runtime, error %d)", error ? "CUDA error" : "no error", int(error));
  return text;
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return driver_entry(symbol, function, result);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return driver_entry(symbol, function, result);
}
/// The driver API's encoder, for code that links against libcuda.
CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  return ptxemu::encode_tiled(out, type, rank, address, dims, strides, box, element_strides, interleave, swizzle,
                              promotion, fill);
}

}  // extern "C"
