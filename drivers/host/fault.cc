// SPDX-License-Identifier: Apache-2.0
// Host accesses to device memory, with `protect` on: the SIGSEGV handler opens the page, records the fault and returns.
//
// Living with other handlers. Every installation is a node with a function and a predecessor of its own: when a handler
// installed over ours (say Python's faulthandler) gives up and restores "the previous one", it restores the node that it
// saw, whose predecessor is still right. RaiseFaultHandler puts the next node on top when somebody else is there. Everything
// in the signal path is async-signal-safe: atomics, mprotect, sigaction.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/host.h"

namespace flagos_host {
namespace {

constexpr size_t kNodes = 8;
constexpr uint64_t kRing = 256;

struct Watched {
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> size{0};
};
Watched g_watched[kMaxDevices];

// Fixed ring: handlers add, AccessFaultTake removes. A fault that finds it full opens its page and is not recorded.
struct Fault {
  std::atomic<bool> full{false};
  uintptr_t address = 0;
  int device = 0;
  int is_write = -1;
};
Fault g_ring[kRing];
std::atomic<uint64_t> g_head{0};
std::atomic<uint64_t> g_tail{0};
std::atomic<uint64_t> g_pending{0};
std::mutex g_take_mutex;

const uintptr_t g_page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));

struct Node {
  struct sigaction previous;
  std::atomic<bool> used{false};
};
Node g_nodes[kNodes];
std::mutex g_install_mutex;
std::atomic<bool> g_installed{false};

void Record(uintptr_t address, int device, int is_write) {
  uint64_t head = g_head.load(std::memory_order_relaxed);
  do {
    if (head - g_tail.load(std::memory_order_acquire) >= kRing) return;
  } while (!g_head.compare_exchange_weak(head, head + 1, std::memory_order_acq_rel));
  Fault& fault = g_ring[head % kRing];
  fault.address = address;
  fault.device = device;
  fault.is_write = is_write;
  fault.full.store(true, std::memory_order_release);
  g_pending.fetch_add(1, std::memory_order_release);
}

int IsWrite([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWriteBit = 2;  // of the page-fault error code
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0 ? 1 : 0;
#else
  return -1;
#endif
}

bool OpenPage(const siginfo_t* info, const void* context) {
  if (info->si_code != SEGV_ACCERR || g_forked.load(std::memory_order_relaxed)) return false;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (int device = 0; device < kMaxDevices; ++device) {
    const uintptr_t begin = g_watched[device].begin.load(std::memory_order_acquire);
    if (begin == 0 || address - begin >= g_watched[device].size.load(std::memory_order_relaxed)) continue;
    const uintptr_t page = address / g_page * g_page;
    if (mprotect(reinterpret_cast<void*>(page), g_page, PROT_READ | PROT_WRITE) != 0) return false;
    Record(address, device, IsWrite(context));
    return true;
  }
  return false;
}

// A handler above us passes a fault on by raising the signal again; the address is lost in that. On the alternate stack
// we were interrupted inside a handler: returning ends it, the access faults again and comes here with its address.
bool RaisedByAHandler(const siginfo_t* info, [[maybe_unused]] const void* context) {
  if (info->si_code != SI_TKILL || info->si_pid != getpid()) return false;
#if defined(__x86_64__) || defined(__aarch64__)
  const auto* interrupted = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  const auto pointer = static_cast<uintptr_t>(interrupted->uc_mcontext.gregs[REG_RSP]);
#else
  const auto pointer = static_cast<uintptr_t>(interrupted->uc_mcontext.sp);
#endif
  const stack_t& alternate = interrupted->uc_stack;
  return (alternate.ss_flags & SS_DISABLE) == 0 &&
         pointer - reinterpret_cast<uintptr_t>(alternate.ss_sp) < alternate.ss_size;
#else
  return false;
#endif
}

void CallPrevious(const struct sigaction& previous, int signal, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    // The access faults again after the return and ends the process with the right core; a sent signal is sent again.
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(signal, &fallback, nullptr);
    if (info->si_code <= 0) raise(signal);
  } else {
    previous.sa_handler(signal);
  }
}

template <size_t N>
void Handle(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  if (!OpenPage(info, context) && !RaisedByAHandler(info, context)) {
    CallPrevious(g_nodes[N].previous, signal, info, context);
  }
  errno = saved;
}

using Handler = void (*)(int, siginfo_t*, void*);
constexpr Handler kHandlers[kNodes] = {Handle<0>, Handle<1>, Handle<2>, Handle<3>,
                                       Handle<4>, Handle<5>, Handle<6>, Handle<7>};

bool IsOurs(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         std::find(std::begin(kHandlers), std::end(kHandlers), action.sa_sigaction) != std::end(kHandlers);
}

// With the install mutex held.
flagos_status_t PutOnTop() {
  struct sigaction current = {};
  if (sigaction(SIGSEGV, nullptr, &current) != 0 || IsOurs(current)) return FLAGOS_OK;
  for (size_t i = 0; i < kNodes; ++i) {
    Node& node = g_nodes[i];
    // A node that was used may still be somebody's predecessor, so it is used again only above the same handler.
    const bool same = node.used.load() && node.previous.sa_flags == current.sa_flags &&
                      node.previous.sa_sigaction == current.sa_sigaction;
    if (node.used.load() && !same) continue;
    if (!same) node.previous = current;
    node.used.store(true);
    struct sigaction ours = {};
    ours.sa_sigaction = kHandlers[i];
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGSEGV, &ours, nullptr) != 0) {
      return Fail(FLAGOS_VENDOR_ERROR, "memory_alloc", -1, "sigaction(SIGSEGV): %s", std::strerror(errno));
    }
    return FLAGOS_OK;
  }
  return FLAGOS_OK;  // handlers were changed more often than we follow; the last node below still serves
}

}  // namespace

flagos_status_t InstallFaultHandler() {
  const std::lock_guard lock(g_install_mutex);
  const flagos_status_t status = PutOnTop();
  if (status == FLAGOS_OK) g_installed.store(true);
  return status;
}

void RaiseFaultHandler() {
  if (!g_installed.load(std::memory_order_relaxed)) return;
  struct sigaction current = {};
  if (sigaction(SIGSEGV, nullptr, &current) == 0 && IsOurs(current)) return;
  const std::lock_guard lock(g_install_mutex);
  if (g_installed.load()) PutOnTop();
}

void RemoveFaultHandler() {
  const std::lock_guard lock(g_install_mutex);
  struct sigaction current = {};
  if (!g_installed.exchange(false) || sigaction(SIGSEGV, nullptr, &current) != 0) return;
  for (size_t i = 0; i < kNodes; ++i) {
    if (IsOurs(current) && current.sa_sigaction == kHandlers[i]) sigaction(SIGSEGV, &g_nodes[i].previous, nullptr);
  }
}

void WatchArena(int device, const Arena& arena) {
  g_watched[device].size.store(arena.size, std::memory_order_relaxed);
  g_watched[device].begin.store(arena.device, std::memory_order_release);
}

void ForgetFaults(uintptr_t begin, size_t size) {
  // Only after a fault is a page open, but telling which costs more than closing them all.
  if (g_head.load(std::memory_order_relaxed) != 0) mprotect(reinterpret_cast<void*>(begin), size, PROT_NONE);
}

flagos_status_t AccessFaultTake(flagos_access_fault_t* out_fault) {
  if (g_pending.load(std::memory_order_acquire) == 0) [[likely]]
    return FLAGOS_NOT_READY;
  return Guarded("access_fault_take", [&] {
    const std::lock_guard lock(g_take_mutex);
    const uint64_t tail = g_tail.load(std::memory_order_relaxed);
    Fault& fault = g_ring[tail % kRing];
    if (!fault.full.load(std::memory_order_acquire)) return FLAGOS_NOT_READY;  // its handler is still writing
    flagos_access_fault_t full{};
    full.struct_size = out_fault->struct_size;
    full.device = fault.device;
    full.address = reinterpret_cast<void*>(fault.address);
    full.is_write = fault.is_write;
    fault.full.store(false, std::memory_order_relaxed);
    g_tail.store(tail + 1, std::memory_order_release);
    g_pending.fetch_sub(1, std::memory_order_relaxed);
    // Closed again, so that the next access to the same page is found too.
    const uintptr_t page = reinterpret_cast<uintptr_t>(full.address) / g_page * g_page;
    mprotect(reinterpret_cast<void*>(page), g_page, PROT_NONE);
    std::memcpy(out_fault, &full, std::min<size_t>(out_fault->struct_size, sizeof full));
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
