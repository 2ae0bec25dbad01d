// SPDX-License-Identifier: Apache-2.0
#include "torch/device/errors.h"

#include <c10/util/Exception.h>

namespace torch_fl {

void ThrowAsTorchError(const Error& error) {
  switch (error.status()) {
    case FLAGOS_OUT_OF_MEMORY:
      C10_THROW_ERROR(OutOfMemoryError, error.what());
    case FLAGOS_UNSUPPORTED:
      C10_THROW_ERROR(NotImplementedError, error.what());
    case FLAGOS_DEVICE_LOST:
    case FLAGOS_VENDOR_ERROR:
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                  static_cast<int32_t>(error.status()), error.what());
    default:
      C10_THROW_ERROR(Error, error.what());
  }
}

}  // namespace torch_fl
