// SPDX-License-Identifier: Apache-2.0
// Marks the calling thread as being inside a routed kernel, so that the target's allocator serves device memory.
#pragma once

namespace torch_fl {

struct RouteState {
  int depth;        // > 0 inside a route
  int device;       // flagos index that allocations of this thread belong to
  const char* op;   // operator name, lives for ever; recorded with each allocation
};

// Trivial and initial-exec: the allocator hook reads it on every CPU allocation of the process.
extern __attribute__((tls_model("initial-exec"))) thread_local RouteState t_route;

class RouteScope {
 public:
  RouteScope(int device, const char* op) noexcept : saved_(t_route) { t_route = {saved_.depth + 1, device, op}; }
  ~RouteScope() { t_route = saved_; }
  RouteScope(const RouteScope&) = delete;
  RouteScope& operator=(const RouteScope&) = delete;

 private:
  RouteState saved_;
};

}  // namespace torch_fl
