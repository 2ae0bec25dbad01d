// SPDX-License-Identifier: Apache-2.0
// A shared object opened at run time.
#pragma once

#include <string>

namespace torch_fl {

// Closes on destruction unless Release() was called; drivers are released, because their threads, signal handlers and
// tables live as long as the process.
class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  // Throws LIBRARY_MISSING with the loader's own words.
  explicit DynamicLibrary(const std::string& path);
  ~DynamicLibrary();
  DynamicLibrary(DynamicLibrary&& other) noexcept;
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;
  DynamicLibrary(const DynamicLibrary&) = delete;
  DynamicLibrary& operator=(const DynamicLibrary&) = delete;

  // NULL when there is no such symbol.
  void* Find(const char* symbol) const noexcept;
  void Release() noexcept { handle_ = nullptr; }

 private:
  void* handle_ = nullptr;
};

// Path of the shared object (or executable) that contains `address`; empty when unknown.
std::string LibraryPathOf(const void* address);

}  // namespace torch_fl
