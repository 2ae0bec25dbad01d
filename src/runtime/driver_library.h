// SPDX-License-Identifier: Apache-2.0
// Opens one driver library, checks its table and initialises it.
#pragma once

#include <string>
#include <vector>

#include "runtime/internal.h"

namespace torch_fl::runtime {

struct LoadedDriver {
  DriverInfo info;
  flagos_driver_v1_t table{};  // completed: entries that the driver does not know are NULL
  std::vector<DriverOption> options;
};

// `origin` is the first thing every message says: "FLAGOS_DRIVER=host". A library is initialised once per process: a
// second call with the same path gives the same driver or throws the same error. The caller serialises calls.
const LoadedDriver& LoadDriver(const std::string& origin, const std::string& name, const std::string& path);

// "libtorch_fl_driver_host.so" -> "host"; empty when the file is named differently.
std::string DriverNameOfFile(const std::string& file);

}  // namespace torch_fl::runtime
