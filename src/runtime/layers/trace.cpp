// SPDX-License-Identifier: Apache-2.0
// trace: one JSON line a call: {"t_us","thread","entry","args","status","us"}.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>

#include "runtime/internal.h"
#include "runtime/layers/entries.h"
#include "runtime/layers/layer.h"

namespace torch_fl::runtime::layers {
namespace {

using Clock = std::chrono::steady_clock;

const flagos_driver_v1_t* g_inner = nullptr;
flagos_driver_v1_t g_table;
std::FILE* g_out = nullptr;  // never closed; its own lock keeps lines whole
bool g_counts = false;
Clock::time_point g_start;

void AppendText(std::string* line, const char* text) {
  if (text == nullptr) {
    *line += "null";
    return;
  }
  *line += '"';
  for (; *text != '\0'; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    if (c == '"' || c == '\\') {
      *line += '\\';
      *line += *text;
    } else if (c < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      *line += escaped;
    } else {
      *line += *text;
    }
  }
  *line += '"';
}

void AppendAddress(std::string* line, const void* address) {
  if (address == nullptr) {
    *line += "null";
    return;
  }
  char text[32];
  std::snprintf(text, sizeof text, "\"%#" PRIxPTR "\"", reinterpret_cast<uintptr_t>(address));
  *line += text;
}

void AppendKernel(std::string* line, const flagos_kernel_t* kernel) {
  if (kernel == nullptr) {
    *line += "null";
    return;
  }
  *line += "{\"name\":";
  AppendText(line, kernel->name);
  *line += ",\"accesses\":[";
  for (size_t i = 0; i < kernel->access_count && kernel->accesses != nullptr; ++i) {
    const flagos_access_t& access = kernel->accesses[i];
    *line += i == 0 ? "[" : ",[";
    AppendAddress(line, access.pointer);
    *line += "," + std::to_string(access.size) + (access.is_write != 0 ? ",\"write\"]" : ",\"read\"]");
  }
  *line += "]}";
}

// Numbers as numbers, addresses as text; what an out parameter points to when the call filled it.
template <class Argument>
void AppendArgument(std::string* line, Argument argument, bool filled) {
  if constexpr (std::is_same_v<Argument, const flagos_kernel_t*>) {
    AppendKernel(line, argument);
  } else if constexpr (std::is_arithmetic_v<Argument>) {
    *line += std::to_string(argument);
  } else if constexpr (std::is_pointer_v<Argument>) {
    using Target = std::remove_pointer_t<Argument>;
    if constexpr (std::is_function_v<Target>) {
      AppendAddress(line, reinterpret_cast<const void*>(argument));
    } else if constexpr (!std::is_const_v<Target> && (std::is_arithmetic_v<Target> || std::is_pointer_v<Target>)) {
      if (filled && argument != nullptr) {
        AppendArgument(line, *argument, false);
      } else {
        *line += "null";
      }
    } else {
      AppendAddress(line, argument);
    }
  }
}

struct Trace {
  template <auto Entry, class... Arguments>
  static flagos_status_t Call(Arguments... arguments) {
    if (InForkedChild()) return (g_inner->*Entry)(arguments...);
    if (g_counts) CountCall(kEntryIndex<Entry>);
    const Clock::time_point begin = Clock::now();
    const flagos_status_t status = (g_inner->*Entry)(arguments...);
    const Clock::time_point end = Clock::now();
    using Microseconds = std::chrono::duration<double, std::micro>;
    char number[64];
    std::snprintf(number, sizeof number, "{\"t_us\":%.1f,\"thread\":%ld,\"entry\":\"",
                  Microseconds(begin - g_start).count(), static_cast<long>(syscall(SYS_gettid)));
    std::string line = number;
    line += kEntryName<Entry>;
    line += "\",\"args\":[";
    size_t place = 0;
    ((line += place++ == 0 ? "" : ",", AppendArgument(&line, arguments, status == FLAGOS_OK)), ...);
    std::snprintf(number, sizeof number, "\",\"us\":%.1f}\n", Microseconds(end - begin).count());
    line += "],\"status\":\"" + StatusName(status) + number;
    std::fwrite(line.data(), 1, line.size(), g_out);
    return status;
  }
};

void AtExit() {
  if (!InForkedChild()) std::fflush(g_out);
  if (g_inner->at_exit != nullptr) g_inner->at_exit();
}

std::string FileOf(const LayerSpec& spec) {
  std::string path;
  for (size_t i = 0; i < spec.arguments.size(); ++i) {
    if (!KeyValue(spec.arguments[i], "file", &path) || path.empty() || i != 0) {
      BadArgument(spec, spec.arguments[i], "file=PATH, once (a path may not hold ',' or ':')");
    }
  }
  return path;
}

void Check(const LayerSpec& spec) { FileOf(spec); }

const flagos_driver_v1_t& Wrap(const flagos_driver_v1_t& inner, const LayerSpec& spec) {
  const std::string path = FileOf(spec);
  g_out = stderr;
  if (!path.empty()) {
    g_out = std::fopen(path.c_str(), "ae");
    if (g_out == nullptr) {
      BadArgument(spec, "file=" + path, std::string("a file that can be written (") + std::strerror(errno) + ")");
    }
    // Whole lines reach the file at once: a crash, the moment a trace is for, loses none, and a fork doubles none.
    std::setvbuf(g_out, nullptr, _IOLBF, 1 << 16);
  }
  g_inner = &inner;
  g_table = inner;
  g_counts = ClaimCallCounts();
  g_start = Clock::now();
  WrapAll<Trace>(inner, &g_table);
  g_table.at_exit = &AtExit;
  return g_table;
}

}  // namespace

const Layer kTrace{"trace", &Check, &Wrap};

}  // namespace torch_fl::runtime::layers
