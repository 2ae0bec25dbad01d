// SPDX-License-Identifier: Apache-2.0
// Everything torch_fl tells torch, in one explicit order. Nothing registers itself in a static initialiser, so loading
// the library alone changes nothing.
#pragma once

#include <c10/macros/Export.h>

#include <string>

namespace torch_fl {

// Registers guard, allocator, storage, hooks, routes, composite selections and autocast under PrivateUse1. Creates no
// context and loads no driver. Further calls do nothing; a failed call throws and may not be repeated.
//
// `delegate`: torch's name for the device type whose backend owns the devices (device/owner.h); empty for our own runtime.
C10_EXPORT void RegisterBackend(const std::string& delegate);

// The parts, in their own files.
void RegisterGuard();  // device/guard.cpp
void RegisterHooks();  // device/hooks.cpp
void RegisterAutocast();  // amp/autocast.cpp
void RegisterAttention();  // targets/cpu/sdpa.cpp
void RegisterRecurrent();  // targets/cpu/rnn.cpp

}  // namespace torch_fl
