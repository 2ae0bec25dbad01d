// SPDX-License-Identifier: Apache-2.0
#include "runtime/layers/refuse.h"

#include <cstdarg>
#include <cstdio>
#include <deque>
#include <mutex>

#include "runtime/layers/entries.h"

namespace torch_fl::runtime::layers {
namespace {

struct ErrorSlot {
  flagos_error_t error;
  char text[1024];
};
// A kilobyte in thread-local storage would not fit the static block that this library shares (device.cpp). Slots are made by a
// thread's first refusal and never given back: a thread may fail while it ends.
constinit thread_local ErrorSlot* t_slot = nullptr;
constinit thread_local bool t_ours = false;  // the most recent failure is a layer's

ErrorSlot& MakeSlot() {
  static auto* const slots = new std::deque<ErrorSlot>;
  static auto* const mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  return slots->emplace_back();
}

const flagos_driver_v1_t* g_driver = nullptr;  // written once by WrapErrors, before the table is handed out

struct Errors {
  template <auto Entry, class... Arguments>
  static flagos_status_t Call(Arguments... arguments) {
    const flagos_status_t status = (g_driver->*Entry)(arguments...);
    if (status != FLAGOS_OK && status != FLAGOS_NOT_READY) t_ours = false;
    return status;
  }
};

const flagos_error_t* LastError() { return t_ours ? &t_slot->error : g_driver->last_error(); }

}  // namespace

flagos_status_t Refuse(flagos_status_t status, const char* function, int device, const char* format, ...) noexcept {
  if (status == FLAGOS_NOT_READY) return status;
  if (t_slot == nullptr) t_slot = &MakeSlot();
  va_list arguments;
  va_start(arguments, format);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is started on the line above
  std::vsnprintf(t_slot->text, sizeof t_slot->text, format, arguments);
  va_end(arguments);
  t_slot->error = {sizeof(flagos_error_t), status, device, 0, t_slot->text, function};
  t_ours = true;
  return status;
}

const flagos_driver_v1_t& WrapErrors(const flagos_driver_v1_t& driver) {
  static flagos_driver_v1_t table;
  g_driver = &driver;
  table = driver;
  WrapAll<Errors>(driver, &table);
  table.last_error = &LastError;
  return table;
}

}  // namespace torch_fl::runtime::layers
