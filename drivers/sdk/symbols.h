// SPDX-License-Identifier: Apache-2.0
// Vendor libraries by dlopen: which file was opened, which of a function's candidate names was found, what is missing.
// Names stand in tables, so a driver compiles and links without an SDK and can print what it found.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <vector>

namespace flagos_sdk {

// A logical function: the first candidate that the library exports goes to *slot, NULL when there is none.
struct Symbol {
  const char* logical;
  bool required;
  void** slot;
  std::vector<std::string> candidates;
};

struct Resolved {
  std::string logical;
  bool required = false;
  std::string name;   // the candidate that was found; empty when none was
  std::string tried;  // all candidates, comma separated
};

// What a library offered. Plain data: safe to keep and print at any time.
struct Audit {
  std::string library;  // path as the loader knows it; empty when it was not opened
  std::string reason;   // why not, in the loader's words
  std::vector<Resolved> symbols;

  // Required functions that are missing, with the names that were tried; empty when all are there.
  std::string MissingRequired() const {
    std::string text;
    for (const Resolved& symbol : symbols) {
      if (symbol.required && symbol.name.empty()) text += (text.empty() ? "" : ", ") + symbol.tried;
    }
    return text;
  }

  // One line for the library and one for each function.
  std::string Text() const {
    std::string text = (!library.empty() ? library : reason.empty() ? "not tried" : "not opened: " + reason) + "\n";
    for (const Resolved& symbol : symbols) {
      const char* const need = symbol.required ? "required" : "optional";
      text += "  " + symbol.logical + " (" + need + "): ";
      text += (symbol.name.empty() ? "missing, tried " + symbol.tried : symbol.name) + "\n";
    }
    return text;
  }
};

// "$ORIGIN/" at the start of a candidate stands for the folder of the shared object that holds `address`.
inline std::string ExpandOrigin(const std::string& candidate, const void* address) {
  constexpr const char kOrigin[] = "$ORIGIN/";
  constexpr size_t kLength = sizeof kOrigin - 1;
  Dl_info info{};
  if (candidate.rfind(kOrigin, 0) != 0) return candidate;
  if (dladdr(const_cast<void*>(address), &info) == 0 || info.dli_fname == nullptr) return candidate;
  const std::string file = info.dli_fname;
  const size_t slash = file.rfind('/');
  return (slash == std::string::npos ? "." : file.substr(0, slash)) + "/" + candidate.substr(kLength);
}

// Opens the first candidate that there is, one that is in the process already before all others: two versions of one vendor
// runtime in a process are two runtimes. Never closed: vendor libraries have threads.
// NULL when none opens; `audit` says which it was, or why none.
inline void* OpenLibrary(const std::vector<std::string>& candidates, const void* origin, Audit* audit) {
  void* handle = nullptr;
  for (const std::string& candidate : candidates) {
    handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle != nullptr) break;
  }
  for (size_t i = 0; handle == nullptr && i < candidates.size(); ++i) {
    handle = dlopen(ExpandOrigin(candidates[i], origin).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char* const reason = handle == nullptr ? dlerror() : nullptr;
    // The first name is the usual one, so its reason is the one that helps.
    if (reason != nullptr && audit->reason.empty()) audit->reason = reason;
  }
  if (handle == nullptr) return nullptr;
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, reinterpret_cast<void*>(&map)) == 0 && map != nullptr)
    audit->library = map->l_name;
  if (audit->library.empty()) audit->library = "(this program)";
  audit->reason.clear();
  return handle;
}

// Fills every slot. `handle` may be NULL: then all slots are.
inline void ResolveSymbols(void* handle, const std::vector<Symbol>& symbols, Audit* audit) {
  for (const Symbol& symbol : symbols) {
    Resolved row;
    row.logical = symbol.logical;
    row.required = symbol.required;
    *symbol.slot = nullptr;
    for (const std::string& candidate : symbol.candidates) {
      row.tried += (row.tried.empty() ? "" : ", ") + candidate;
      if (handle == nullptr || *symbol.slot != nullptr) continue;
      *symbol.slot = dlsym(handle, candidate.c_str());
      if (*symbol.slot != nullptr) row.name = candidate;
    }
    audit->symbols.push_back(row);
  }
}

}  // namespace flagos_sdk
