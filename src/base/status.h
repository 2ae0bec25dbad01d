// SPDX-License-Identifier: Apache-2.0
// The one exception type of the torch-free layers. The torch layer turns it into the matching c10 error.
#pragma once

#include <stdexcept>
#include <string>

#include "torch_fl/driver.h"

namespace torch_fl {

// Carries a driver status so that callers can tell OUT_OF_MEMORY from the rest. The message names the call, the value,
// the device and the remedy; it is complete by itself.
class Error : public std::runtime_error {
 public:
  Error(flagos_status_t status, const std::string& message) : std::runtime_error(message), status_(status) {}
  flagos_status_t status() const noexcept { return status_; }

 private:
  flagos_status_t status_;
};

// "OUT_OF_MEMORY" and so on; "status 99" for a number nobody knows. Never NULL.
std::string StatusName(flagos_status_t status);

}  // namespace torch_fl
