// SPDX-License-Identifier: Apache-2.0
// The runtime reads its environment once a process, so every test body runs in a child with an environment of its own.
// The test process itself never loads a driver.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace torch_fl::test {

using Environment = std::vector<std::pair<std::string, std::string>>;

// Exit status of a child in which an expectation failed; sanitizers use 1.
inline constexpr int kExpectationFailed = 99;

// The wait status of a child that ran `body`; expectations that fail in it are printed.
inline int RunChild(const Environment& environment, const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::vector<std::string> inherited;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (text.rfind("FLAGOS_", 0) == 0) inherited.push_back(text.substr(0, text.find('=')));
    }
    for (const std::string& name : inherited) unsetenv(name.c_str());
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "uncaught: " << error.what();
    }
    std::exit(testing::Test::HasFailure() ? kExpectationFailed
                                          : 0);  // exit, not _exit: what runs at exit is under test too
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

inline void InChild(const Environment& environment, const std::function<void()>& body) {
  const int status = RunChild(environment, body);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with wait status " << status;
}

inline std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// What `body` throws; fails when it does not.
inline std::string ErrorOf(const std::function<void()>& body, flagos_status_t status) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// The host view of a device address.
template <class T = unsigned char>
T* View(void* pointer, int device = 0) {
  return reinterpret_cast<T*>(static_cast<char*>(pointer) + runtime::HostViewOffset(device));
}

}  // namespace torch_fl::test
