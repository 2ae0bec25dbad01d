// SPDX-License-Identifier: Apache-2.0
#include "base/options.h"

#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "base/status.h"

namespace torch_fl {
namespace {

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

[[noreturn]] void Refuse(const std::string& name, const std::string& value, const std::string& known) {
  throw Error(FLAGOS_INVALID_VALUE, name + "=" + value + " is not understood; use " + known);
}

}  // namespace

std::optional<std::string> EnvString(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || value[0] == '\0') return std::nullopt;
  return std::string(value);
}

bool ParseFlag(const std::string& name, const std::string& value) {
  const std::string word = Lower(value);
  if (word == "1" || word == "true" || word == "on" || word == "yes") return true;
  if (word == "0" || word == "false" || word == "off" || word == "no") return false;
  Refuse(name, value, "1, true, on, yes or 0, false, off, no");
}

uint64_t ParseBytes(const std::string& name, const std::string& value) {
  constexpr const char* kKnown = "a number of bytes, optionally with a suffix K, M, G or T (powers of 1024)";
  uint64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || end - rest > 1) Refuse(name, value, kKnown);
  int shift = 0;
  if (rest != end) {
    switch (std::toupper(static_cast<unsigned char>(*rest))) {
      case 'K':
        shift = 10;
        break;
      case 'M':
        shift = 20;
        break;
      case 'G':
        shift = 30;
        break;
      case 'T':
        shift = 40;
        break;
      default:
        Refuse(name, value, kKnown);
    }
  }
  if (number > (UINT64_MAX >> shift)) Refuse(name, value, kKnown);
  return number << shift;
}

bool EnvFlag(const char* name, bool default_value) {
  const auto value = EnvString(name);
  return value ? ParseFlag(name, *value) : default_value;
}

uint64_t EnvBytes(const char* name, uint64_t default_value) {
  const auto value = EnvString(name);
  return value ? ParseBytes(name, *value) : default_value;
}

std::string EnvChoice(const char* name, std::initializer_list<const char*> known, const char* default_value) {
  const auto value = EnvString(name);
  if (!value) return default_value;
  std::string list;
  for (const char* word : known) {
    if (*value == word) return *value;
    list += (list.empty() ? "" : ", ") + std::string(word);
  }
  Refuse(name, *value, "one of: " + list);
}

std::string FormatBytes(uint64_t bytes) {
  char text[32];
  const auto amount = static_cast<double>(bytes);
  if (bytes < 1024) {
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  } else if (bytes < (1ull << 20)) {
    std::snprintf(text, sizeof text, "%.2f KiB", amount / 1024);
  } else if (bytes < (1ull << 30)) {
    std::snprintf(text, sizeof text, "%.2f MiB", amount / (1ull << 20));
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB", amount / (1ull << 30));
  }
  return text;
}

}  // namespace torch_fl
