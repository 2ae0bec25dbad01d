// SPDX-License-Identifier: Apache-2.0
#include "torch/device/allocator_settings.h"

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/allocator.h"
#include "torch/device/errors.h"
#include "torch/version.h"

namespace torch_fl {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

void Carry() {
  runtime::AllocatorConfig config;
  config.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  config.max_non_split_rounding_size = AcceleratorAllocatorConfig::max_non_split_rounding_size();
#if TORCH_FL_TORCH_AT_LEAST(2, 11)
  config.large_segment_size = AcceleratorAllocatorConfig::large_segment_size();
#endif
  config.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  config.expandable_segments = AcceleratorAllocatorConfig::use_expandable_segments();
  config.roundup_power2_divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
  Translate([&] { runtime::SetAllocatorConfig(config); });
}

// Settings that torch parses for all devices, its own GPU's among them, and that this allocator has no use for.
void WarnOfIgnored(const std::string& settings) {
  constexpr std::string_view kHonoured[] = {"large_segment_size_mb",        "max_split_size_mb",
                                            "max_non_split_rounding_mb",    "expandable_segments",
                                            "garbage_collection_threshold", "roundup_power2_divisions"};
  const c10::CachingAllocator::ConfigTokenizer tokens(settings);
  std::string ignored;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& key = tokens[i];
    if (std::find(std::begin(kHonoured), std::end(kHonoured), key) == std::end(kHonoured)) ignored += " " + key;
    i = tokens.skipKey(i) + 1;  // the comma
  }
  if (!ignored.empty()) {
    TORCH_WARN_ONCE("flagos: its allocator does not have these settings and ignores them:", ignored);
  }
}

}  // namespace

void FollowAllocatorSettings() {
#if TORCH_FL_TORCH_AT_LEAST(2, 11)
  // One hook for the whole process: another backend's stays in the chain.
  auto before = AcceleratorAllocatorConfig::getConfigParserHook();
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [before = std::move(before)](const std::string& settings) {
        if (before) before(settings);
        WarnOfIgnored(settings);
        Carry();
      },
      {});
#endif
  // What is wrong in the environment must not break an import.
  try {
    WarnOfIgnored(AcceleratorAllocatorConfig::last_allocator_settings());
    Carry();
  } catch (const c10::Error& error) {
    TORCH_WARN_ONCE("flagos: PYTORCH_ALLOC_CONF is ignored: ", error.what_without_backtrace());
  }
}

void SetAllocatorSettings(const std::string& settings) {
  c10::CachingAllocator::setAllocatorSettings(settings);
  Carry();
}

}  // namespace torch_fl
