// SPDX-License-Identifier: Apache-2.0
// What the files of the layers share. Not for other parts of the runtime.
//
// A layer is one static table of C functions and the state they use; both live for ever. `Wrap` is called at most once
// in a process, before any other thread can reach the table. No layer holds its lock while it calls the inner table.
// In a forked child every layer passes calls on untouched: its lock may be held there for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/layers.h"

namespace torch_fl::runtime::layers {

// Checks the arguments of a layer when FLAGOS_DRIVER_LAYERS is read; throws Error(INVALID_VALUE).
// Returns the table round `inner`.
using CheckArguments = void (*)(const LayerSpec& spec);
using WrapTable = const flagos_driver_v1_t& (*)(const flagos_driver_v1_t& inner, const LayerSpec& spec);

struct Layer {
  const char* name;
  CheckArguments check;
  WrapTable wrap;
};

// True in a child that was forked after the layers were put round the driver. Known to the layers themselves: the
// runtime's own mark is set only when something was made through the runtime, and tools call tables directly.
bool InForkedChild() noexcept;

extern const Layer kValidate;
extern const Layer kTrace;
extern const Layer kLeak;
extern const Layer kFault;
extern const Layer kDelay;

// Throws Error(INVALID_VALUE) with the variable, the word and what is understood.
[[noreturn]] void BadArgument(const LayerSpec& spec, const std::string& argument, const std::string& known);
void NoArguments(const LayerSpec& spec);
// Throws Error(UNSUPPORTED) that names the layer unless it is on.
[[noreturn]] void RaiseLayerOff(const char* call, const char* name);
inline void RequireLayer(bool on, const char* call, const char* name) {
  if (!on) RaiseLayerOff(call, name);
}

// True when the argument is `key=value`, whose value is stored.
bool KeyValue(const std::string& argument, const std::string& key, std::string* value);
uint64_t ParseNumber(const LayerSpec& spec, const std::string& argument, const std::string& digits, uint64_t minimum,
                     uint64_t maximum);

// Calls of each status entry, for TakeCallCounts. Of the layers that count, the innermost one does: the first to claim.
bool ClaimCallCounts() noexcept;
void CountCall(size_t entry) noexcept;

}  // namespace torch_fl::runtime::layers
