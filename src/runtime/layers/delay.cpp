// SPDX-License-Identifier: Apache-2.0
// delay: seeded waits in the streams, so that what nothing orders happens in another order than it was written.
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "runtime/internal.h"
#include "runtime/layers/entries.h"
#include "runtime/layers/layer.h"

namespace torch_fl::runtime::layers {
namespace {

constexpr uint64_t kDefaultSeed = 1;
constexpr uint64_t kDefaultMaxUs = 200;
constexpr uint64_t kLongestUs = 10'000'000;

const flagos_driver_v1_t* g_inner = nullptr;
flagos_driver_v1_t g_table;
uint64_t g_seed = kDefaultSeed;  // both written before the table is handed out
uint64_t g_max_us = kDefaultMaxUs;
std::atomic<uint64_t> g_turn{0};

// splitmix64 of (seed, turn): with one thread the same waits in every run.
uint64_t NextDelayUs() {
  uint64_t x = g_seed + (g_turn.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (x ^ (x >> 31)) % (g_max_us + 1);
}

// On a driver thread, which may not be asked for anything.
void Sleep(void* microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<uintptr_t>(microseconds)));
}

// A wait that cannot be queued is left out: the call it stands before meets the same obstacle and reports it.
void Delay(flagos_stream_t stream) {
  if (stream == nullptr || InForkedChild()) return;
  static_cast<void>(g_inner->stream_host_func(stream, &Sleep, reinterpret_cast<void*>(NextDelayUs())));
}

flagos_status_t Copy(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                     flagos_stream_t stream) {
  Delay(stream);
  return g_inner->copy(dst, dst_device, src, src_device, size, stream);
}

flagos_status_t Fill(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream) {
  Delay(stream);
  return g_inner->fill(dst, device, value, size, stream);
}

flagos_status_t StreamHostFunc(flagos_stream_t stream, flagos_host_func_t func, void* user_data) {
  Delay(stream);
  return g_inner->stream_host_func(stream, func, user_data);
}

uint64_t Capabilities() {
  const uint64_t bits = g_inner->capabilities();
  return (bits & FLAGOS_CAP_HOST_VIEW) != 0 ? bits | FLAGOS_CAP_KERNEL_ORDER : bits;
}

flagos_status_t KernelBegin(flagos_stream_t stream) {
  return g_inner->kernel_begin != nullptr ? g_inner->kernel_begin(stream) : g_inner->stream_sync(stream);
}

// The kernel has run; the wait behind it keeps later events of the stream pending.
flagos_status_t KernelEnd(flagos_stream_t stream, const flagos_kernel_t* kernel) {
  const flagos_status_t status = g_inner->kernel_end != nullptr ? g_inner->kernel_end(stream, kernel) : FLAGOS_OK;
  if (status == FLAGOS_OK) Delay(stream);
  return status;
}

void ReadArguments(const LayerSpec& spec, uint64_t* seed, uint64_t* max_us) {
  for (const std::string& argument : spec.arguments) {
    std::string value;
    if (KeyValue(argument, "seed", &value)) {
      *seed = ParseNumber(spec, argument, value, 0, UINT64_MAX);
    } else if (KeyValue(argument, "max_us", &value)) {
      *max_us = ParseNumber(spec, argument, value, 0, kLongestUs);
    } else {
      BadArgument(spec, argument, "seed=N or max_us=N");
    }
  }
}

void Check(const LayerSpec& spec) {
  uint64_t ignored = 0;
  ReadArguments(spec, &ignored, &ignored);
}

const flagos_driver_v1_t& Wrap(const flagos_driver_v1_t& inner, const LayerSpec& spec) {
  g_inner = &inner;
  g_table = inner;
  ReadArguments(spec, &g_seed, &g_max_us);
  if (inner.stream_host_func == nullptr) {
    std::fprintf(stderr, "torch_fl: layer delay: driver %s has no stream_host_func; nothing is delayed\n",
                 inner.platform);
    return g_table;
  }
  g_table.copy = &Copy;
  g_table.fill = &Fill;
  g_table.stream_host_func = &StreamHostFunc;
  g_table.capabilities = &Capabilities;
  // Without the capability the driver's own entries stay as they are.
  if ((Capabilities() & FLAGOS_CAP_KERNEL_ORDER) != 0) {
    g_table.kernel_begin = &KernelBegin;
    g_table.kernel_end = &KernelEnd;
  }
  return g_table;
}

}  // namespace

const Layer kDelay{"delay", &Check, &Wrap};

}  // namespace torch_fl::runtime::layers
