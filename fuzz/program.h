// SPDX-License-Identifier: Apache-2.0
// One random program.
#pragma once

#include "calls.h"
#include "driver_fuzz.h"
#include "model.h"

namespace torch_fl::fuzz {

class Program {
 public:
  Program(const uint8_t* data, size_t size);
  void Run();

 private:
  void Step();
  void Finish();

  // Objects
  void MakeStream();
  void DestroyStream();
  void MakeEvent();
  void DestroyEvent();
  void MakeBlock();
  void MakeMapped();
  void MakePinned();
  void MakeRegistered();
  void FreeMemory();
  void Free(Memory* memory);

  // Work
  void Fill();
  void CopyFromPageable();
  void CopyToPageable();
  void CopyBetween();
  void Kernel();
  void HostFunction();
  void WriteOnHost();
  void WrapStream();

  // Order
  void RecordEvent();
  void WaitEvent();
  void QueryEvent();
  void SyncEvent();
  void Elapsed();
  void QueryStream();
  void SyncStream();
  void SyncDevice(int device);

  // Questions and misuse
  void Ask();
  void Misuse();
  void MisuseMemory();
  void MisuseHandle();
  void MisuseDevice();
  void MisuseAddressSpace();

  void Verify(const Memory& memory);

  // ---- Order, order.cc

  // The queue's clock before the work that is queued now.
  Clock& Submit(Queue* queue);
  // Counts the access that was queued just now.
  void Queued(Queue* queue);
  bool Conflicts(const Memory& memory, bool write, const Clock& clock) const;
  // Makes what the host (queue NULL) or a queue does next come after all accesses that it conflicts with; false when it
  // left that out on purpose, which makes the bytes of all memory unknown.
  bool Order(Memory* memory, bool write, Queue* queue, bool may_race);
  void Touch(Memory* memory, bool write, Queue* queue);
  void JoinQueue(Queue* queue);

  // ---- Picks; NULL or -1 when there is nothing to pick
  Queue* AnyQueue();
  Queue* QueueOf(int device);
  EventState* AnyEvent();
  Memory* AnyMemory(bool device_only);
  // A part of the memory.
  void Part(const Memory& memory, size_t* begin, size_t* size);
  std::vector<uint8_t> Data(size_t size);

  Input input_;
  int devices_;
  uint64_t capabilities_;
  std::vector<std::unique_ptr<Queue>> queues_;  // index = id; destroyed ones stay
  std::vector<std::unique_ptr<EventState>> events_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<flagos_stream_t> dead_streams_;
  std::vector<flagos_event_t> dead_events_;
  Clock host_;  // what the host waited for
};

}  // namespace torch_fl::fuzz
