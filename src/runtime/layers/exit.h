// SPDX-License-Identifier: Apache-2.0
// What the runtime gives back before the leak layer reports.
#pragma once

namespace torch_fl::runtime {

// `give_back` returns what a part of the runtime keeps for itself (cached memory, pooled streams and events) to the
// driver. Called at process exit, in reverse order of registration, while everything still works; only with the leak
// layer, because giving memory back waits for work in flight. At most 8; any thread; `give_back` must not throw.
void AddBeforeExit(void (*give_back)());

// By the exit handler. Does nothing without the leak layer.
void RunBeforeExit() noexcept;

}  // namespace torch_fl::runtime
