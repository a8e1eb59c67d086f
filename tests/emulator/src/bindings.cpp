// The Python module: a parsed module, its kernels, and launches.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "decoder.h"
#include "scheduler.h"

namespace py = pybind11;

namespace ptxemu {
namespace {

/// (address, bytes, writable, defined, name)
using AllocationTuple = std::tuple<u64, u64, bool, bool, std::string>;

/// CPU time of this thread: what else the machine does is left out.
double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

class Module {
 public:
  explicit Module(const std::string& ptx) : text_(ptx) {}

  std::vector<std::string> entries() const { return text_.entries; }

  /// (offset, size) of each kernel parameter.
  std::vector<std::pair<int, int>> parameters(const std::string& name) {
    std::vector<std::pair<int, int>> result;
    for (const Parameter& parameter : program(name).parameters) result.push_back({parameter.offset, parameter.size});
    return result;
  }

  py::dict describe(const std::string& name) {
    const Program& p = program(name);
    py::dict result;
    result["instructions"] = p.code.size();
    result["register_bytes"] = p.register_bytes;
    result["static_shared"] = p.static_shared;
    result["local_bytes"] = p.local_bytes;
    result["max_threads"] = p.max_threads;
    result["cluster"] = std::array<u32, 3>{p.cluster[0], p.cluster[1], p.cluster[2]};
    return result;
  }

  py::dict launch(const std::string& name, std::array<u32, 3> grid, std::array<u32, 3> block, u32 dynamic_shared,
                  const py::bytes& params, const std::vector<AllocationTuple>& buffers, std::array<u32, 3> cluster,
                  const py::dict& options) {
    Program& prog = program(name);
    for (Instruction& inst : prog.code) inst.executed = inst.idle = 0;
    std::vector<Allocation> allocations = text_.globals.allocations;
    for (const auto& [address, bytes, writable, defined, label] : buffers)
      allocations.push_back({address, address + bytes, writable, defined, label});
    std::sort(allocations.begin(), allocations.end(),
              [](const Allocation& a, const Allocation& b) { return a.begin < b.begin; });

    Launch launch;
    launch.program = &prog;
    std::copy(grid.begin(), grid.end(), launch.grid);
    std::copy(block.begin(), block.end(), launch.block);
    for (int k = 0; k < 3; k++) launch.cluster_shape[k] = prog.cluster[0] ? prog.cluster[k] : cluster[k];
    launch.dynamic_shared = dynamic_shared;
    launch.shared_bytes = prog.static_shared + dynamic_shared;
    const std::string bytes = params;
    launch.params.assign(bytes.begin(), bytes.end());
    launch.params.resize(std::max<size_t>(launch.params.size(), prog.parameter_bytes));
    launch.allocations = &allocations;
    launch.options = read_options(options);
    check_launch(launch);

    std::string error, error_kind;
    const double start = thread_seconds();
    {
      py::gil_scoped_release release;
      try {
        run_grid(launch);
      } catch (const EmulatorError& caught) {
        error = caught.what();
        error_kind = caught.kind;
      }
    }
    const double elapsed = thread_seconds() - start;
    py::dict result;
    result["error"] = error;
    result["error_kind"] = error_kind;
    result["findings"] = findings(launch);
    result["seconds"] = elapsed;
    result["counters"] = counters(launch.counters);
    return result;
  }

  /// (PTX line, executed, idle) of every instruction, of the last launch.
  std::vector<std::tuple<int, u64, u64>> idle(const std::string& name) {
    std::vector<std::tuple<int, u64, u64>> result;
    for (const Instruction& inst : program(name).code) result.push_back({inst.ptx_line, inst.executed, inst.idle});
    return result;
  }

  /// (PTX line, source, text, executed) of every instruction, of the last launch.
  py::list profile(const std::string& name) {
    py::list result;
    const Program& prog = program(name);
    for (const Instruction& inst : prog.code)
      result.append(py::make_tuple(inst.ptx_line, source_of(prog, inst.location), std::string(inst.text), inst.executed));
    return result;
  }

 private:
  static void check_launch(const Launch& launch) {
    const u32 threads = launch.block[0] * launch.block[1] * launch.block[2];
    if (!threads || threads > 1024) throw EmulatorError("launch", format("a block of %u threads", threads));
    if (launch.program->max_threads && threads > launch.program->max_threads)
      throw EmulatorError("launch", format("%u threads for a kernel made for %u", threads, launch.program->max_threads));
    constexpr u32 kMaxShared = 227 * 1024;
    if (launch.shared_bytes > kMaxShared)
      throw EmulatorError("launch", format("%u bytes of shared memory (227 KiB at most)", launch.shared_bytes));
  }

  static LaunchOptions read_options(const py::dict& given) {
    LaunchOptions options;
    const auto take = [&](const char* name, auto& value) {
      if (given.contains(name)) value = given[name].cast<std::decay_t<decltype(value)>>();
    };
    take("check_races", options.check_races);
    take("check_undefined", options.check_undefined);
    take("check_proxies", options.check_proxies);
    take("check_mbarrier_init", options.check_mbarrier_init);
    take("check_equal_writes", options.check_equal_writes);
    take("strict_cp_async_proxy", options.strict_cp_async_proxy);
    take("count_memory", options.count_memory);
    take("seed", options.seed);
    take("shared_fill", options.shared_fill);
    take("register_fill", options.register_fill);
    take("resident_clusters", options.resident_clusters);
    take("max_warp_instructions", options.max_warp_instructions);
    std::string mode = "lazy";
    take("async_mode", mode);
    if (mode != "lazy" && mode != "eager" && mode != "random")
      throw py::value_error("async_mode: expected lazy, eager or random, got " + mode);
    options.async = mode == "lazy" ? AsyncMode::Lazy : mode == "eager" ? AsyncMode::Eager : AsyncMode::Random;
    return options;
  }

  static py::list findings(const Launch& launch) {
    py::list list;
    for (const Finding& finding : launch.findings) {
      py::dict item;
      item["kind"] = finding.kind;
      item["message"] = finding.message;
      item["where"] = finding.where;
      item["source"] = finding.source;
      item["instruction"] = finding.instruction;
      item["ptx_line"] = finding.ptx_line;
      item["count"] = finding.count;
      list.append(item);
    }
    return list;
  }

  static py::dict counters(const Counters& c) {
    py::dict result, classes;
    for (int k = 0; k < int(CounterClass::Count); k++)
      if (c.by_class[k]) classes[counter_name(k)] = c.by_class[k];
    result["warp_instructions"] = c.warp_instructions;
    result["lane_instructions"] = c.lane_instructions;
    result["instructions"] = classes;
    result["matrix_operations"] = c.matrix_operations;
    result["matrix_flops"] = c.matrix_flops;
    result["shared_requests"] = c.shared_requests;
    result["shared_wavefronts"] = c.shared_wavefronts;
    result["global_requests"] = c.global_requests;
    result["global_sectors"] = c.global_sectors;
    result["global_bytes_read"] = c.global_bytes_read;
    result["global_bytes_written"] = c.global_bytes_written;
    result["async_bytes_read"] = c.async_bytes_read;
    result["async_bytes_written"] = c.async_bytes_written;
    result["barriers"] = c.barriers;
    return result;
  }

  Program& program(const std::string& name) {
    auto& slot = programs_[name];
    if (!slot) {
      auto parsed = std::make_unique<Program>();
      Decoder(text_, *parsed).decode(name);
      slot = std::move(parsed);
    }
    return *slot;
  }

  ModuleText text_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

/// The 128 bytes of a tensor map; extents innermost first, strides in bytes of dimensions 1 and up.
py::bytes encode_tensor_map(int element_type, u64 address, const std::vector<u64>& dims, const std::vector<u64>& strides,
                            const std::vector<u32>& box, int swizzle, bool fill_nan) {
  TensorMap map = {};
  map.magic = kTensorMapMagic;
  map.address = address;
  map.rank = u8(dims.size());
  if (map.rank < 1 || map.rank > 5 || box.size() != dims.size() || strides.size() + 1 < dims.size())
    throw py::value_error("dims, box, strides: expected 1 to 5 extents, as many box extents, one stride less");
  map.element_type = u8(element_type);
  static const u8 modes[] = {kSwizzleNone, kSwizzle32B, kSwizzle64B, kSwizzle128B};  // as CUtensorMapSwizzle
  map.swizzle = modes[swizzle & 3];
  map.fill_nan = fill_nan;
  for (size_t k = 0; k < dims.size(); k++) {
    map.dim[k] = u32(dims[k]);
    map.box[k] = u16(box[k]);
    map.element_stride[k] = 1;
    if (k > 0) map.stride[k - 1] = strides[k - 1];
  }
  if (const char* error = tensor_map_error(map)) throw py::value_error(std::string("tensor map: ") + error);
  std::string bytes(kTensorMapBytes, '\0');
  memcpy(bytes.data(), &map, sizeof map);
  return py::bytes(bytes);
}

}  // namespace
}  // namespace ptxemu

PYBIND11_MODULE(_ptxemu, m) {
  using ptxemu::Module;
  m.doc() = "PTX emulator: executes kernels on the CPU and checks every access.";
  static py::object load_error = py::exception<ptxemu::EmulatorError>(m, "EmulatorError", PyExc_RuntimeError);
  m.def("encode_tensor_map", &ptxemu::encode_tensor_map, py::arg("element_type"), py::arg("address"), py::arg("dims"),
        py::arg("strides"), py::arg("box"), py::arg("swizzle"), py::arg("fill_nan"),
        "The emulator's 128-byte tensor map; raises ValueError where the hardware would refuse it.");
  py::class_<Module>(m, "Module")
      .def(py::init<const std::string&>(), py::arg("ptx"))
      .def("entries", &Module::entries, "Names of the kernels.")
      .def("parameters", &Module::parameters, py::arg("name"), "(offset, size) of each parameter.")
      .def("describe", &Module::describe, py::arg("name"), "Static facts of a kernel.")
      .def("profile", &Module::profile, py::arg("name"))
      .def("idle", &Module::idle, py::arg("name"))
      .def("launch", &Module::launch, py::arg("name"), py::arg("grid"), py::arg("block"), py::arg("dynamic_shared"),
           py::arg("params"), py::arg("allocations"), py::arg("cluster"), py::arg("options"),
           "Runs a grid. 'error' of the result is empty unless the run was stopped; 'findings' lists what did not "
           "stop it.");
}
