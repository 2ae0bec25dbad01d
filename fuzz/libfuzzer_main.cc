// SPDX-License-Identifier: Apache-2.0
#include "driver_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torch_fl::fuzz::RunProgram(data, size);
  return 0;
}
