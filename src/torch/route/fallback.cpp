// SPDX-License-Identifier: Apache-2.0
#include "torch/route/fallback.h"

#include <ATen/core/Tensor.h>

#include <sstream>
#include <string>

#include "router/policy.h"
#include "torch/device/errors.h"
#include "torch/device/owner.h"

namespace torch_fl {
namespace {

constexpr size_t kMaxDescribed = 6;  // tensors of a list beyond these are counted, not printed

void Describe(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "undefined";
    return;
  }
  out << tensor.scalar_type() << tensor.sizes() << "@" << tensor.device();
}

std::string DescribeArguments(at::ArrayRef<c10::IValue> arguments) {
  std::ostringstream out;
  const char* separator = "";
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      out << separator;
      Describe(out, value.toTensor());
    } else if (value.isTensorList()) {
      const auto tensors = value.toTensorVector();
      out << separator << "[";
      for (size_t i = 0; i < tensors.size() && i < kMaxDescribed; ++i) {
        if (i > 0) out << ", ";
        Describe(out, tensors[i]);
      }
      if (tensors.size() > kMaxDescribed) out << ", and " << tensors.size() - kMaxDescribed << " more";
      out << "]";
    } else {
      continue;
    }
    separator = ", ";
  }
  return out.str();
}

const char* Reason() {
  return router::GetForcedRoute() == router::ForcedRoute::kCpu
             ? "FLAGOS_FORCE_BACKEND=cpu forces it"
             : "this device has no kernel for it and the CPU cannot see its memory";
}

}  // namespace

Staging StagingMode() {
  // Fixed by the owner, so asked once.
  static const bool no_target = !ActiveOwner().HasTarget();
  if (no_target) return Staging::kAlways;
  return router::GetForcedRoute() == router::ForcedRoute::kCpu ? Staging::kForced : Staging::kNever;
}

void AnnounceFallback(OpRecord& op, at::ArrayRef<c10::IValue> arguments) {
  if (router::g_log_fallback.load(std::memory_order_relaxed)) router::LogFallback(op.name.c_str());
  const router::FallbackPolicy policy = Translate([] { return router::GetFallbackPolicy(); });
  if (policy == router::FallbackPolicy::kAllow) return;
  if (policy == router::FallbackPolicy::kWarn && op.warned.exchange(true, std::memory_order_relaxed)) return;
  const std::string text =
      op.name + " runs on the CPU through copies: " + Reason() + ". Arguments: " + DescribeArguments(arguments) +
      ". Inputs are copied to the host and results back on every call; torch_fl.summary() shows how often.";
  TORCH_CHECK(policy != router::FallbackPolicy::kError, text,
              " The fallback policy is `error`: set FLAGOS_FALLBACK=warn or torch_fl.set_fallback_policy(\"allow\") to "
              "let it run.");
  TORCH_WARN(text,
             " (Shown once per operator; FLAGOS_FALLBACK=allow silences it, FLAGOS_FALLBACK=error makes it an error.)");
}

void RaiseNoRoute(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  std::string name = op.schema().name();
  if (!op.schema().overload_name().empty()) name += "." + op.schema().overload_name();
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, name, " has no route on flagos (arguments: ", DescribeArguments(arguments),
      "): tried native, alias and cpu, and the operator has no kernel for either key. Register a CPU kernel "
      "for it, or a PrivateUse1 kernel with torch.library.impl(\"",
      name, "\", \"privateuseone\").");
}

}  // namespace torch_fl
