// SPDX-License-Identifier: Apache-2.0
#include "router/policy.h"

#include <cstdio>

#include "base/options.h"
#include "base/status.h"

namespace torch_fl::router {
namespace {

std::atomic<int> g_fallback{-1};  // -1: environment not read yet
std::atomic<int> g_forced{-1};

std::string Environment(const char* name) { return EnvString(name).value_or(""); }

bool IsOn(const std::string& value) { return value == "1" || value == "true" || value == "on" || value == "yes"; }

// Is `word` one of the comma-separated words of FLAGOS_LOG?
bool LogListHas(const char* word) {
  std::string list = "," + Environment("FLAGOS_LOG") + ",";
  return list.find("," + std::string(word) + ",") != std::string::npos || list == ",all,";
}

}  // namespace

FallbackPolicy ParseFallbackPolicy(const std::string& word) {
  if (word == "allow") return FallbackPolicy::kAllow;
  if (word == "warn") return FallbackPolicy::kWarn;
  if (word == "error") return FallbackPolicy::kError;
  throw Error(FLAGOS_INVALID_VALUE, "fallback policy '" + word + "' is unknown: use allow, warn or error");
}

const char* FallbackPolicyName(FallbackPolicy policy) noexcept {
  switch (policy) {
    case FallbackPolicy::kAllow:
      return "allow";
    case FallbackPolicy::kWarn:
      return "warn";
    case FallbackPolicy::kError:
      return "error";
  }
  return "warn";
}

FallbackPolicy GetFallbackPolicy() {
  int value = g_fallback.load(std::memory_order_relaxed);
  if (value < 0) {
    std::string word = Environment("FLAGOS_FALLBACK");
    value = static_cast<int>(word.empty() ? FallbackPolicy::kWarn : ParseFallbackPolicy(word));
    g_fallback.store(value, std::memory_order_relaxed);
  }
  return static_cast<FallbackPolicy>(value);
}

void SetFallbackPolicy(FallbackPolicy policy) noexcept {
  g_fallback.store(static_cast<int>(policy), std::memory_order_relaxed);
}

ForcedRoute ParseForcedRoute(const std::string& word) {
  if (word.empty()) return ForcedRoute::kNone;
  // vendor-word: the name that the original gave the alias route
  if (word == "alias" || word == "cuda") return ForcedRoute::kAlias;
  if (word == "cpu") return ForcedRoute::kCpu;
  throw Error(FLAGOS_INVALID_VALUE, "FLAGOS_FORCE_BACKEND='" + word + "' is unknown: use alias or cpu");
}

ForcedRoute GetForcedRoute() {
  int value = g_forced.load(std::memory_order_relaxed);
  if (value < 0) {
    value = static_cast<int>(ParseForcedRoute(Environment("FLAGOS_FORCE_BACKEND")));
    g_forced.store(value, std::memory_order_relaxed);
  }
  return static_cast<ForcedRoute>(value);
}

void SetForcedRoute(ForcedRoute route) noexcept { g_forced.store(static_cast<int>(route), std::memory_order_relaxed); }

std::atomic<bool> g_log_dispatch{false};
std::atomic<bool> g_log_fallback{false};

void InitLogFlags() {
  g_log_dispatch.store(IsOn(Environment("FLAGOS_LOG_DISPATCH")) || LogListHas("dispatch"), std::memory_order_relaxed);
  g_log_fallback.store(IsOn(Environment("FLAGOS_LOG_FALLBACK")) || LogListHas("fallback"), std::memory_order_relaxed);
}

void LogDispatch(const char* op, const char* route) { std::fprintf(stderr, "[flagos dispatch] %s -> %s\n", op, route); }
void LogFallback(const char* op) { std::fprintf(stderr, "[flagos cpu_fallback] %s\n", op); }

}  // namespace torch_fl::router
