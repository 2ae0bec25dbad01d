// SPDX-License-Identifier: Apache-2.0
// Contexts, what a forked child may do, and process exit.
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "runtime/allocator/event_cache.h"
#include "runtime/internal.h"
#include "runtime/layers/exit.h"
#include "runtime/pinned.h"
#include "runtime/stream.h"

namespace torch_fl::runtime {
namespace {

std::array<std::atomic<bool>, kMaxDevices> g_has_context;
std::atomic<bool> g_exiting{false};

// Runs in the child of fork, where other threads' locks may be held for ever: one atomic and nothing else.
void MarkForked() { g_attention.fetch_or(kAttentionForked, std::memory_order_relaxed); }

}  // namespace

bool HasContext(int device) noexcept {
  return device >= 0 && device < kMaxDevices &&
         g_has_context[static_cast<size_t>(device)].load(std::memory_order_relaxed);
}

void MarkContext(int device) {
  std::atomic<bool>& flag = g_has_context[static_cast<size_t>(device)];
  if (flag.load(std::memory_order_relaxed)) [[likely]]
    return;
  static const int registered = pthread_atfork(nullptr, nullptr, &MarkForked);
  if (registered != 0) throw Error(FLAGOS_OUT_OF_MEMORY, "pthread_atfork: no memory for a fork handler");
  flag.store(true, std::memory_order_relaxed);
}

void ThrowForked(const char* call) {
  throw Error(FLAGOS_NOT_INITIALIZED,
              std::string(call) +
                  ": cannot use flagos in a forked subprocess, because the parent had initialised it. To use flagos "
                  "with multiprocessing, choose the 'spawn' start method");
}

bool Exiting() noexcept { return g_exiting.load(std::memory_order_relaxed); }

namespace {

template <class Function>
void GiveBack(Function&& function) noexcept {
  try {
    function();
  } catch (const Error& error) {
    std::fprintf(stderr, "torch_fl: at exit: %s\n", error.what());
  }
}

}  // namespace

void RegisterExit() {
  // Backwards in the order given. What cannot be given back is reported, which is what the reader of the report wants to know.
  AddBeforeExit([] { DestroyStreamHandles(); });
  AddBeforeExit([] { DestroyIdleEvents(); });
  AddBeforeExit([] { GiveBack([] { HostEmptyCache(); }); });
  AddBeforeExit([] { GiveBack([] { EmptyCache(); }); });
  static const pid_t owner = getpid();
  static const int registered = std::atexit([] {
    // A child that forked before any context has no fork mark, but the driver's promise is to this process only.
    const bool ours = !Forked() && getpid() == owner;
    if (ours) RunBeforeExit();
    g_exiting.store(true, std::memory_order_relaxed);
    if (!ours) return;
    if (Driver().at_exit != nullptr) Driver().at_exit();
  });
  if (registered != 0) throw Error(FLAGOS_OUT_OF_MEMORY, "atexit: no memory for an exit handler");
}

}  // namespace torch_fl::runtime
