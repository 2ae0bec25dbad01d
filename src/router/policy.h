// SPDX-License-Identifier: Apache-2.0
// Process-wide switches of routing: what may fall back, what is forced, what is logged. No torch header.
#pragma once

#include <atomic>
#include <string>

namespace torch_fl::router {

// What happens when an operator has no route but the copying CPU fallback.
enum class FallbackPolicy : int { kAllow = 0, kWarn = 1, kError = 2 };

// FLAGOS_FALLBACK=allow|warn|error at first use (default warn), SetFallbackPolicy afterwards. An unknown word is an Error
// that lists the known ones.
FallbackPolicy GetFallbackPolicy();
void SetFallbackPolicy(FallbackPolicy policy) noexcept;
FallbackPolicy ParseFallbackPolicy(const std::string& word);
const char* FallbackPolicyName(FallbackPolicy policy) noexcept;

// FLAGOS_FORCE_BACKEND: "" (none), "alias" (also under the name the original gave it) or "cpu". Read once.
enum class ForcedRoute : int { kNone = 0, kAlias = 1, kCpu = 2 };
ForcedRoute GetForcedRoute();
void SetForcedRoute(ForcedRoute route) noexcept;
ForcedRoute ParseForcedRoute(const std::string& word);

// FLAGOS_LOG_DISPATCH=1 or FLAGOS_LOG=dispatch: `[flagos dispatch] add.Tensor -> alias` on stderr before the kernel runs.
// FLAGOS_LOG_FALLBACK=1 or FLAGOS_LOG=fallback: `[flagos cpu_fallback] aten::foo`.
extern std::atomic<bool> g_log_dispatch;
extern std::atomic<bool> g_log_fallback;
void InitLogFlags();
void LogDispatch(const char* op, const char* route);
void LogFallback(const char* op);

}  // namespace torch_fl::router
