// SPDX-License-Identifier: Apache-2.0
// Which operators are routed, and the registration of their kernels.
//
// Threads: everything from any thread. Registrations live as long as the process.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_fl {

// Registers owned kernels and a route for every operator that has a kernel for the target, and starts watching for operators
// that are registered later. Once.
void RegisterRoutes();

// Does the target serve this operator as one call: a kernel of its own, or a composite that is routed as a whole?
bool HasTargetRoute(const c10::OperatorHandle& op);

// Unboxed routes for the overloads that programs call all the time (hot_ops.cpp). Called by RegisterRoutes.
void RegisterHotOps();

// Names ("aten::add.Tensor") of all routed overloads, sorted.
C10_EXPORT std::vector<std::string> RoutedOps();

// Routes every operator that gained a target kernel since the last scan; returns how many.
C10_EXPORT int RescanRoutes();

// Results at these positions stay CPU tensors when `op` runs. Throws c10::Error for an unknown operator or a bad position.
C10_EXPORT void KeepOnCpu(const std::string& op, const std::vector<int64_t>& outputs);

// True while operators registered after RegisterRoutes may still be waiting for their kernels. One relaxed load.
extern std::atomic<bool> g_routes_may_be_stale;
inline bool RoutesMayBeStale() { return g_routes_may_be_stale.load(std::memory_order_relaxed); }
// Looks at the waiting operators now and then; called by routed calls while RoutesMayBeStale().
void RescanPending();

}  // namespace torch_fl
