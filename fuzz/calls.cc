// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/status.h"
#include "driver_fuzz.h"

namespace torch_fl::fuzz {
namespace {

struct Record {
  const char* entry;
  std::array<uint64_t, 6> arguments;
  size_t count;
  int status;  // -1 while it runs
};

constexpr size_t kKept = 40;

struct Log {
  std::array<Record, kKept> records;
  uint64_t calls = 0;
  uint64_t unordered = 0;
  const char* label = "";
};

thread_local Log t_log;

}  // namespace

uint64_t CallCount() { return t_log.calls; }
uint64_t UnorderedCount() { return t_log.unordered; }

void SetLabel(const char* label) { t_log.label = label; }

void NoteCall(const char* entry, const std::array<uint64_t, 6>& arguments, size_t count) {
  t_log.records[t_log.calls++ % kKept] = {entry, arguments, count, -1};
}

void Die(const char* format, ...) {
  static std::mutex one_at_a_time;
  one_at_a_time.lock();  // never given back: the first failure is the one to read
  const Log& log = t_log;
  std::fprintf(stderr, "\n%s\nlast calls:\n", log.label);
  for (uint64_t call = log.calls > kKept ? log.calls - kKept : 0; call < log.calls; ++call) {
    const Record& record = log.records[call % kKept];
    std::fprintf(stderr, "  #%" PRIu64 " %s(", call, record.entry);
    for (size_t i = 0; i < record.count; ++i) {
      const auto number = static_cast<int64_t>(record.arguments[i]);
      const bool small = number >= -2 && number < 1000000;
      std::fprintf(stderr, small ? "%s%" PRId64 : "%s%#" PRIx64, i > 0 ? ", " : "", number);
    }
    const auto status = static_cast<flagos_status_t>(record.status);
    std::fprintf(stderr, ") %s\n", record.status < 0 ? "..." : StatusName(status).c_str());
  }
  std::fprintf(stderr, "driver fuzz: ");
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\n");
  std::abort();
}

flagos_status_t CheckCall(const char* entry, flagos_status_t status, uint32_t allowed) {
  t_log.records[(t_log.calls - 1) % kKept].status = status;
  const flagos_error_t* error = D().last_error();
  if (status < 0 || status > FLAGOS_UNORDERED || (In(status) & allowed) == 0) {
    Die("%s gave %s (%s), allowed: set %#x", entry, StatusName(status).c_str(), error->vendor_text, allowed);
  }
  if (status == FLAGOS_OK || status == FLAGOS_NOT_READY) return status;
  if (status == FLAGOS_UNORDERED) ++t_log.unordered;
  if (error->status != status || std::strcmp(error->function, entry) != 0) {
    Die("%s gave %s, but the last error is %s of %s", entry, StatusName(status).c_str(),
        StatusName(error->status).c_str(), error->function);
  }
  return status;
}

}  // namespace torch_fl::fuzz
