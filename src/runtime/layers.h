// SPDX-License-Identifier: Apache-2.0
// Layers: tables of the driver interface that stand between the runtime and a driver and watch, check or disturb what
// passes. FLAGOS_DRIVER_LAYERS=<layer>[:<argument>...][,<layer>...], the outermost first:
//
//   validate                        handles, pointers, sizes; and order: an access that no event, wait or sync orders behind
//                                   the last conflicting one is FLAGOS_UNORDERED and the text names both
//   trace[:file=PATH]               one JSON line a call (default: standard error)
//   leak                            what was made and not given back; reported at exit, or asked for by LiveObjects
//   fault[:ENTRY:NTH:STATUS]        the NTH call of ENTRY from now fails with STATUS (OUT_OF_MEMORY, ...)
//   delay[:seed=N][:max_us=N]       seeded waits in the streams before queued work and after kernels
//
// One instance of each in a process. They fit any driver. docs/layers.md is for users.
//
// Threads: any, like the tables themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_fl/driver.h"

namespace torch_fl::runtime {

struct LayerSpec {
  std::string name;
  std::vector<std::string> arguments;
};

std::vector<std::string> KnownLayers();
// Throws Error(INVALID_VALUE) that names FLAGOS_DRIVER_LAYERS, the word that is wrong and the known ones.
std::vector<LayerSpec> ParseLayers(std::string_view text);
// Puts the layers round a completed table (DriverLibrary), the first outermost. Once in a process. The result and `driver`
// live for ever.
const flagos_driver_v1_t& WrapDriver(const flagos_driver_v1_t& driver, const std::vector<LayerSpec>& layers);

// ---- Controls. Each throws Error(UNSUPPORTED) that names the layer when it is not on.

// fault: the nth call (from 1) of `entry` from now fails with `status`; nth 0 disarms. Replaces what was armed for `entry`.
void ArmFault(std::string_view entry, uint64_t nth, flagos_status_t status);
void DisarmFaults();
uint64_t FaultsFired();  // since the start
// fault or trace: calls of each entry since the last call of this function.
std::vector<std::pair<std::string, uint64_t>> TakeCallCounts();

// leak: what lives now, oldest first.
struct LiveObject {
  std::string kind;  // "memory", "host_memory", "host_registration", "stream", "event", "reservation", "mapping"
  uint64_t handle = 0;
  size_t size = 0;  // bytes; 0 for streams and events
  int device = -1;
  uint64_t number = 0;  // order of creation
};
std::vector<LiveObject> LiveObjects();

// validate: how many accesses were checked and how many were found unordered.
struct ValidateCounts {
  uint64_t accesses = 0;
  uint64_t unordered = 0;
  uint64_t misuses = 0;  // handles, pointers, sizes
};
ValidateCounts GetValidateCounts();

}  // namespace torch_fl::runtime
