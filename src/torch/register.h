// SPDX-License-Identifier: Apache-2.0
// Everything torch_fl tells torch, in one explicit order. Nothing registers itself in a static initialiser, so loading
// the library alone changes nothing.
#pragma once

#include <c10/macros/Export.h>

namespace torch_fl {

// Registers guard, allocator, storage, hooks, routes, composite selections and autocast under PrivateUse1. Creates no
// context and loads no driver. Further calls do nothing; a failed call throws and may not be repeated.
C10_EXPORT void RegisterBackend();

// The parts, in their own files.
void RegisterGuard();      // device/guard.cpp
void RegisterHooks();      // device/hooks.cpp
void RegisterAutocast();   // amp/autocast.cpp
void RegisterAttention();  // targets/cpu/sdpa.cpp
void RegisterRecurrent();  // targets/cpu/rnn.cpp

}  // namespace torch_fl
