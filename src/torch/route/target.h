// SPDX-License-Identifier: Apache-2.0
// The target: the dispatch key whose kernels flagos tensors run on by aliasing, and the key-set arithmetic between the two.
// One target is active per process, chosen at registration; everything that is specific to it lives in targets/<key>/.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <string>

namespace torch_fl {

constexpr c10::DeviceType kFlagos = c10::DeviceType::PrivateUse1;
constexpr c10::BackendComponent kFlagosBit = c10::BackendComponent::PrivateUse1Bit;

// Autograd functionality, absent from an alias: an aliased call runs below autograd.
constexpr c10::DispatchKeySet kAutogradKeys = c10::autograd_dispatch_keyset_with_ADInplaceOrView;

// Keys that an alias drops: autograd, and Python dispatch, which belongs to the caller's object.
constexpr c10::DispatchKeySet kDroppedKeys =
    kAutogradKeys | c10::python_ks | c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1);

struct Target {
  c10::DeviceType type;
  c10::BackendComponent bit;
  c10::DispatchKey dense, sparse, sparse_csr, autocast;

  // The target device that stands for flagos:index. The CPU has one device without an index.
  c10::Device DeviceFor(c10::DeviceIndex index) const {
    return type == c10::DeviceType::CPU ? c10::Device(type) : c10::Device(type, index);
  }
  // Key set of the alias of a flagos tensor: no autograd; backend and autocast keys swapped.
  c10::DispatchKeySet ToTarget(c10::DispatchKeySet keys) const {
    return (keys - kDroppedKeys).remove_backend(kFlagosBit) | c10::DispatchKeySet(autocast) | c10::DispatchKeySet(bit);
  }
  // Key set of the flagos tensor made from a target tensor; autograd keys stay.
  c10::DispatchKeySet ToFlagos(c10::DispatchKeySet keys) const {
    return (keys - c10::DispatchKeySet(autocast)).remove_backend(bit) |
           c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1) | c10::DispatchKeySet(kFlagosBit);
  }
};

// Constant once SetOwner has run (device/owner.h).
extern Target g_active_target;
inline const Target& ActiveTarget() { return g_active_target; }

// The CPU: the target of devices that we own ourselves, and of the copying fallback on all.
const Target& CpuTarget();
// The target of a backend that may own the devices in our place, by torch's name for its device type; null if there is none.
const Target* FindDelegate(const std::string& name);

// Makes the CPU's allocator serve device memory inside a route. Once, by the direct owner.
void InstallTargetAllocator();

// Composites that choose another kernel for flagos tensors than for the target's own: repaired by targets/<key>/.
void RegisterCpuComposites();
void RegisterDelegateComposites();

}  // namespace torch_fl
