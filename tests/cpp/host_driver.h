// SPDX-License-Identifier: Apache-2.0
// For tests of the host driver through its table.
#pragma once

#include <atomic>

#include "child.h"

namespace torch_fl::test {

inline const flagos_driver_v1_t& D() { return runtime::Driver(); }

// The status, after checking that a failure left its function and a text.
inline void ExpectFails(flagos_status_t actual, flagos_status_t expected, const char* function) {
  EXPECT_EQ(actual, expected) << D().last_error()->vendor_text;
  EXPECT_EQ(D().last_error()->status, expected);
  EXPECT_STREQ(D().last_error()->function, function);
  EXPECT_STRNE(D().last_error()->vendor_text, "");
}

// A child that is ended when it takes longer than any of these bodies can: nobody releases what it waits for.
inline void InBoundedChild(const Environment& environment, const std::function<void()>& body) {
  InChild(environment, [&] {
    alarm(30);
    body();
  });
}

// The body once with each queue mode.
inline void InQueueModes(const Environment& environment, const std::function<void()>& body) {
  for (const char* mode : {"eager", "lazy"}) {
    SCOPED_TRACE(mode);
    Environment full = environment;
    full.emplace_back("FLAGOS_HOST_QUEUE", mode);
    InBoundedChild(full, body);
  }
}

}  // namespace torch_fl::test
