// SPDX-License-Identifier: Apache-2.0
// c10::Stream <-> runtime::Stream: the 64-bit id is the runtime's, so the two name the same queue.
//
// Threads: any.
#pragma once

#include <c10/core/Stream.h>

#include "runtime/runtime.h"
#include "torch/device/owner.h"

namespace torch_fl {

inline c10::Stream ToTorchStream(const runtime::Stream* stream) {
  const auto index = static_cast<c10::DeviceIndex>(runtime::StreamDevice(stream));
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, index), runtime::StreamId(stream));
}

// Throws torch_fl::Error for an id that was never handed out.
inline runtime::Stream* FromTorchStream(const c10::Stream& stream) {
  return runtime::StreamFromId(stream.device_index(), stream.id());
}

}  // namespace torch_fl
