// The settings that this process has chosen for attention on the CPU, as Python installs and asks for them.
#pragma once
#include <pybind11/pybind11.h>

#include "settings.h"

namespace chunkattn {

SettingsTable& chosen_settings();

void define_settings(pybind11::module_& m);

}  // namespace chunkattn
