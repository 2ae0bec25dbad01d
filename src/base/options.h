// SPDX-License-Identifier: Apache-2.0
// Reads FLAGOS_* environment variables. A variable that is set to the empty string counts as unset. A value that cannot
// be understood is an Error whose text names the variable, the value and what would have been understood.
//
// Threads: getenv is only safe while nobody calls setenv; callers read their variables once and keep the result.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace torch_fl {

std::optional<std::string> EnvString(const char* name);
// 1, true, on, yes and 0, false, off, no, in any case.
bool EnvFlag(const char* name, bool default_value);
// One of `known`, spelled exactly so.
std::string EnvChoice(const char* name, std::initializer_list<const char*> known, const char* default_value);
// A whole number of bytes, with K, M, G or T for powers of 1024.
uint64_t EnvBytes(const char* name, uint64_t default_value);

// The same rules for a value that came from somewhere else; `name` is only for the message.
bool ParseFlag(const std::string& name, const std::string& value);
uint64_t ParseBytes(const std::string& name, const std::string& value);

// 1536 -> "1.50 KiB", as torch prints sizes.
std::string FormatBytes(uint64_t bytes);

}  // namespace torch_fl
