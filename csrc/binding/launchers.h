// The functions that fill parameter structs and call a kernel library's launcher by its address.
#pragma once
#include <pybind11/pybind11.h>

namespace chunkattn {

void define_launchers(pybind11::module_& m);

}  // namespace chunkattn
