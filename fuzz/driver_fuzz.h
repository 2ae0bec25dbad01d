// SPDX-License-Identifier: Apache-2.0
// Random programs over a driver table.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_fl::fuzz {

struct Options {
  bool races = true;   // now and then an access that nothing orders; not under a thread sanitizer
  bool misuse = true;  // invalid handles, pointers, devices and sizes; for drivers that check them
};

// Set before the first program; constant from then on.
extern Options g_options;

// Decodes the bytes into calls of the active driver (runtime.h); checks every status against driver.h and every byte of
// memory against a model. Gives back all that it made. A failure prints the last calls of the thread and aborts.
//
// Threads: any number at once; each program has objects of its own.
void RunProgram(const uint8_t* data, size_t size);

// Calls of this thread so far.
uint64_t CallCount();
// How many of them a layer refused as FLAGOS_UNORDERED: races made on purpose.
uint64_t UnorderedCount();
// What a failure prints so that it can be repeated; the text must live until the next call.
void SetLabel(const char* label);

}  // namespace torch_fl::fuzz
