// SPDX-License-Identifier: Apache-2.0
// Reads FLAGOS_DRIVER_LAYERS and stacks the tables.
#include "runtime/layers.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/layers/layer.h"
#include "runtime/layers/refuse.h"

namespace torch_fl::runtime {
namespace layers {
namespace {

std::atomic<bool> g_forked{false};

constexpr std::array<const Layer*, 5> kLayers{&kValidate, &kTrace, &kLeak, &kFault, &kDelay};

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

const Layer* Find(const std::string& name) {
  const auto found =
      std::find_if(kLayers.begin(), kLayers.end(), [&](const Layer* layer) { return layer->name == name; });
  return found != kLayers.end() ? *found : nullptr;
}

}  // namespace

bool InForkedChild() noexcept { return g_forked.load(std::memory_order_relaxed); }

void BadArgument(const LayerSpec& spec, const std::string& argument, const std::string& known) {
  throw Error(FLAGOS_INVALID_VALUE,
              "FLAGOS_DRIVER_LAYERS: layer " + spec.name + " does not understand '" + argument + "'; use " + known);
}

void NoArguments(const LayerSpec& spec) {
  if (!spec.arguments.empty()) BadArgument(spec, spec.arguments.front(), "it without arguments");
}

void RaiseLayerOff(const char* call, const char* name) {
  throw Error(FLAGOS_UNSUPPORTED, std::string(call) + ": the driver layer " + name +
                                      " is not on; add it to FLAGOS_DRIVER_LAYERS before the driver is loaded");
}

bool KeyValue(const std::string& argument, const std::string& key, std::string* value) {
  if (argument.rfind(key + "=", 0) != 0) return false;
  *value = argument.substr(key.size() + 1);
  return true;
}

uint64_t ParseNumber(const LayerSpec& spec, const std::string& argument, const std::string& digits, uint64_t minimum,
                     uint64_t maximum) {
  uint64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || rest != end || number < minimum || number > maximum) {
    BadArgument(spec, argument, "a whole number from " + std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return number;
}

}  // namespace layers

std::vector<std::string> KnownLayers() {
  std::vector<std::string> names;
  names.reserve(std::size(layers::kLayers));
  for (const layers::Layer* layer : layers::kLayers) names.emplace_back(layer->name);
  return names;
}

std::vector<LayerSpec> ParseLayers(std::string_view text) {
  std::vector<LayerSpec> specs;
  if (text.empty()) return specs;
  for (const std::string& word : layers::Split(text, ',')) {
    std::vector<std::string> parts = layers::Split(word, ':');
    LayerSpec spec{parts.front(), {parts.begin() + 1, parts.end()}};
    const layers::Layer* layer = layers::Find(spec.name);
    if (layer == nullptr) {
      throw Error(FLAGOS_INVALID_VALUE, "FLAGOS_DRIVER_LAYERS=" + std::string(text) + ": unknown layer '" + spec.name +
                                            "'; known: " + layers::Join(KnownLayers()));
    }
    if (std::any_of(specs.begin(), specs.end(), [&](const LayerSpec& other) { return other.name == spec.name; })) {
      throw Error(FLAGOS_INVALID_VALUE, "FLAGOS_DRIVER_LAYERS=" + std::string(text) + ": layer " + spec.name +
                                            " is named twice; a process has one of each");
    }
    layer->check(spec);
    specs.push_back(std::move(spec));
  }
  return specs;
}

const flagos_driver_v1_t& WrapDriver(const flagos_driver_v1_t& driver, const std::vector<LayerSpec>& specs) {
  if (specs.empty()) return driver;
  static std::atomic<bool> wrapped{false};
  if (wrapped.exchange(true)) {
    throw Error(FLAGOS_UNSUPPORTED, "WrapDriver: this process has driver layers already, and each exists once");
  }
  // Other threads' locks may be held for ever in the child: one atomic and nothing else.
  if (pthread_atfork(nullptr, nullptr, [] { layers::g_forked.store(true, std::memory_order_relaxed); }) != 0) {
    throw Error(FLAGOS_OUT_OF_MEMORY, "pthread_atfork: no memory for a fork handler");
  }
  const flagos_driver_v1_t* table = &layers::WrapErrors(driver);
  for (auto spec = specs.rbegin(); spec != specs.rend(); ++spec) table = &layers::Find(spec->name)->wrap(*table, *spec);
  return *table;
}

}  // namespace torch_fl::runtime
