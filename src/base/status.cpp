// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

namespace torch_fl {

std::string StatusName(flagos_status_t status) {
  switch (status) {
    case FLAGOS_OK:
      return "OK";
    case FLAGOS_NOT_READY:
      return "NOT_READY";
    case FLAGOS_INVALID_VALUE:
      return "INVALID_VALUE";
    case FLAGOS_INVALID_DEVICE:
      return "INVALID_DEVICE";
    case FLAGOS_OUT_OF_MEMORY:
      return "OUT_OF_MEMORY";
    case FLAGOS_NO_DEVICE:
      return "NO_DEVICE";
    case FLAGOS_INVALID_HANDLE:
      return "INVALID_HANDLE";
    case FLAGOS_UNSUPPORTED:
      return "UNSUPPORTED";
    case FLAGOS_NOT_INITIALIZED:
      return "NOT_INITIALIZED";
    case FLAGOS_DEVICE_LOST:
      return "DEVICE_LOST";
    case FLAGOS_LIBRARY_MISSING:
      return "LIBRARY_MISSING";
    case FLAGOS_SYMBOL_MISSING:
      return "SYMBOL_MISSING";
    case FLAGOS_VENDOR_ERROR:
      return "VENDOR_ERROR";
    case FLAGOS_ALREADY:
      return "ALREADY";
    case FLAGOS_UNORDERED:
      return "UNORDERED";
  }
  return "status " + std::to_string(static_cast<int>(status));
}

}  // namespace torch_fl
