// SPDX-License-Identifier: Apache-2.0
// The cuda driver through the runtime's loader, over a stand-in for its libraries: what can be proved without a GPU.
#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "child.h"
#include "cuda_shaped/cuda_monitor.h"
#include "gate.h"
#include "sdk/symbols.h"

namespace torch_fl::test {
namespace {

const std::string kFake = TEST_FAKE_CUDART;
const Environment kOnFake = {
    {"FLAGOS_DRIVER", "cuda"}, {"FLAGOS_CUDA_LIBRARY", kFake}, {"FLAGOS_CUDA_DRIVER_LIBRARY", kFake}};

template <class Function>
Function* Fake(const char* name) {
  void* library = dlopen(kFake.c_str(), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(library != nullptr ? dlsym(library, name) : nullptr);
}
int ContextActive(int device) { return Fake<int(int)>("fake_context_active")(device); }
int CurrentContext() { return Fake<int()>("fake_current_context")(); }

// Without a device the answer is 0 at once and nothing of the vendor is opened.
TEST(CudaDriver, AMachineWithoutADevice) {
  if (access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0) GTEST_SKIP() << "this machine has one";
  InChild({{"FLAGOS_DRIVER", "cuda"}}, [] {
    EXPECT_EQ(runtime::DeviceCount(), 0);
    EXPECT_FALSE(runtime::HardwareDetected());
    EXPECT_EQ(runtime::Driver().device_sync(0), FLAGOS_INVALID_DEVICE);
    EXPECT_NE(std::strstr(runtime::Driver().last_error()->vendor_text, "/dev/nvidiactl"), nullptr);
    for (const char* library : {"libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1"}) {
      EXPECT_EQ(dlopen(library, RTLD_NOW | RTLD_NOLOAD), nullptr) << library;
    }
  });
}

TEST(CudaDriver, WhatIsMissingIsNamed) {
  InChild(
      {{"FLAGOS_DRIVER", "cuda"}, {"FLAGOS_CUDA_LIBRARY", kFake}, {"FLAGOS_CUDA_DRIVER_LIBRARY", "/nonexistent.so"}},
      [] {
        const std::string text = ErrorOf([] { runtime::Driver(); }, FLAGOS_LIBRARY_MISSING);
        EXPECT_NE(text.find("/nonexistent.so"), std::string::npos) << text;
      });
  InChild({{"FLAGOS_DRIVER", "cuda"}, {"FLAGOS_CUDA_LIBRARY", "libc.so.6"}, {"FLAGOS_CUDA_DRIVER_LIBRARY", kFake}}, [] {
    const std::string text = ErrorOf([] { runtime::Driver(); }, FLAGOS_SYMBOL_MISSING);
    EXPECT_NE(text.find("does not export cudaGetDeviceCount, cudaGetDevice"), std::string::npos) << text;
  });
  InChild({{"FLAGOS_DRIVER", "cuda"}, {"FLAGOS_CUDA_COLOUR", "red"}}, [] {
    const std::string text = ErrorOf([] { runtime::Driver(); }, FLAGOS_INVALID_VALUE);
    EXPECT_NE(text.find("known: library, driver_library"), std::string::npos) << text;
  });
}

TEST(CudaDriver, QueriesMakeNoContext) {
  InChild(kOnFake, [] {
    EXPECT_EQ(runtime::DeviceCount(), 2);
    const flagos_device_info_t info = runtime::DeviceInfo(1);
    EXPECT_STREQ(info.name, "fake");
    EXPECT_STREQ(info.arch, "sm_90");
    EXPECT_STREQ(info.pci, "0000:02:00.0");
    EXPECT_EQ(info.compute_units, 132);
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    runtime::DeviceMemory(1, &free_bytes, &total_bytes);
    EXPECT_EQ(total_bytes, info.total_memory);
    EXPECT_EQ(runtime::Driver().device_sync(1), FLAGOS_OK);
    int32_t can = 0;
    EXPECT_EQ(runtime::Driver().peer_can_access(0, 1, &can), FLAGOS_OK);
    flagos_pointer_info_t pointer{};
    pointer.struct_size = sizeof pointer;
    EXPECT_EQ(runtime::Driver().pointer_info(&can, &pointer), FLAGOS_OK);
    EXPECT_EQ(pointer.space, FLAGOS_SPACE_UNKNOWN);
    EXPECT_EQ(ContextActive(0) + ContextActive(1), 0);
  });
}

// A process that works on device 1 must not get a context on device 0.
TEST(CudaDriver, TheCurrentDeviceIsPutBack) {
  InChild(kOnFake, [] {
    const flagos_driver_v1_t& driver = runtime::Driver();
    flagos_stream_t stream = nullptr;
    void* block = nullptr;
    ASSERT_EQ(driver.stream_create(1, FLAGOS_STREAM_DEFAULT, 0, &stream), FLAGOS_OK);
    ASSERT_EQ(driver.memory_alloc(1, 4096, &block), FLAGOS_OK);
    EXPECT_EQ(driver.fill(block, 1, 7, 4096, stream), FLAGOS_OK);
    EXPECT_EQ(driver.stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(driver.memory_free(1, block), FLAGOS_OK);
    EXPECT_EQ(CurrentContext(), -1);
    EXPECT_EQ(ContextActive(0), 0);
    Fake<int(int)>("cudaSetDevice")(0);  // another library's choice
    EXPECT_EQ(driver.stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(CurrentContext(), 0);
    EXPECT_EQ(driver.stream_destroy(stream), FLAGOS_OK);
  });
}

TEST(CudaDriver, RoundTripThroughTheRuntime) {
  InChild(kOnFake, [] {
    constexpr size_t kSize = 100000;
    std::vector<unsigned char> in(kSize), out(kSize);
    for (size_t i = 0; i < kSize; ++i) in[i] = static_cast<unsigned char>(i * 7);
    for (int device = 0; device < 2; ++device) {
      runtime::SetDevice(device);
      void* block = runtime::Allocate(device, kSize);
      runtime::Event* event = runtime::CreateEvent(device, true, false);
      runtime::Copy(block, device, in.data(), FLAGOS_HOST, kSize, true);
      runtime::RecordEvent(event, runtime::CurrentStream(device));
      runtime::SynchronizeEvent(event);
      runtime::Copy(out.data(), FLAGOS_HOST, block, device, kSize, false);
      EXPECT_EQ(in, out);
      runtime::DestroyEvent(event);
      runtime::Free(block);
    }
  });
}

TEST(CudaDriver, ErrorsCarryTheVendorsWordsAndLeaveNothingBehind) {
  InChild(kOnFake, [] {
    const flagos_driver_v1_t& driver = runtime::Driver();
    void* block = nullptr;
    EXPECT_EQ(driver.memory_alloc(0, size_t{1} << 40, &block), FLAGOS_OUT_OF_MEMORY);
    EXPECT_EQ(driver.last_error()->vendor_code, 2);
    EXPECT_STREQ(driver.last_error()->vendor_text, "cudaMalloc: out of memory (cudaErrorMemoryAllocation)");
    EXPECT_STREQ(driver.last_error()->function, "memory_alloc");
    EXPECT_EQ(Fake<int()>("cudaPeekAtLastError")(), 0);
    // NULL, a number, memory of ours: no handle, and nothing is read through it.
    char memory[64] = {};
    for (void* foreign :
         {static_cast<void*>(nullptr), reinterpret_cast<void*>(0x12345671), static_cast<void*>(memory)}) {
      EXPECT_EQ(driver.stream_query(static_cast<flagos_stream_t>(foreign)), FLAGOS_INVALID_HANDLE);
      EXPECT_EQ(driver.event_query(static_cast<flagos_event_t>(foreign)), FLAGOS_INVALID_HANDLE);
    }
  });
}

TEST(CudaDriver, ALostDeviceStaysLost) {
  InChild(kOnFake, [] {
    const flagos_driver_v1_t& driver = runtime::Driver();
    void* block = nullptr;
    ASSERT_EQ(driver.memory_alloc(0, 64, &block), FLAGOS_OK);
    Fake<void(int, int)>("fake_break")(0, 700);
    EXPECT_EQ(driver.device_sync(0), FLAGOS_DEVICE_LOST);
    EXPECT_EQ(driver.last_error()->vendor_code, 700);
    Fake<void(int, int)>("fake_break")(0, 0);
    EXPECT_EQ(driver.memory_alloc(0, 64, &block), FLAGOS_DEVICE_LOST);
    EXPECT_EQ(driver.last_error()->vendor_code, 700);
    EXPECT_EQ(driver.memory_alloc(1, 64, &block), FLAGOS_OK) << "the other one lives";
  });
}

TEST(CudaDriver, AForkedChildMayOnlyFree) {
  for (const bool used : {false, true}) {
    InChild(kOnFake, [used] {
      const flagos_driver_v1_t& driver = runtime::Driver();
      void* block = nullptr;
      if (used) {
        ASSERT_EQ(driver.memory_alloc(0, 64, &block), FLAGOS_OK);
      }
      std::fflush(nullptr);
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);
        if (used) {
          EXPECT_EQ(driver.memory_free(0, block), FLAGOS_OK);
          EXPECT_EQ(driver.memory_alloc(0, 64, &block), FLAGOS_NOT_INITIALIZED);
          EXPECT_NE(std::strstr(driver.last_error()->vendor_text, "spawn"), nullptr);
        } else {
          EXPECT_EQ(driver.memory_alloc(0, 64, &block), FLAGOS_OK) << "the parent had only loaded the driver";
        }
        std::_Exit(testing::Test::HasFailure() ? kExpectationFailed : 0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    });
  }
}

TEST(CudaDriver, VisibleDevicesAreCountedAsCudaDoes) {
  const auto count = [](const char* list) { return flagos_cuda_shaped::CountVisible(list, 4); };
  EXPECT_EQ(count("0,1,2,3"), 4);
  EXPECT_EQ(count(" 3 ,0"), 2);
  EXPECT_EQ(count(""), 0);
  EXPECT_EQ(count("-1"), 0);
  EXPECT_EQ(count("1,9,2"), 1) << "what follows an unknown one is not seen";
  for (const char* list : {"GPU-8932f937", "0,GPU-8932f937", "MIG-1", "0,0", "1x", "NoDevFiles"}) {
    EXPECT_EQ(count(list), -1) << list << " is for CUDA to judge";
  }
}

TEST(SymbolTable, AuditNamesWhatWasFoundAndWhatIsMissing) {
  void* found = nullptr;
  void* second = nullptr;
  void* missing = &found;
  flagos_sdk::Audit audit;
  void* const library = flagos_sdk::OpenLibrary({"/nonexistent.so", "libc.so.6"}, nullptr, &audit);
  ASSERT_NE(library, nullptr);
  flagos_sdk::ResolveSymbols(library,
                             {{"first", true, &found, {"malloc"}},
                              {"second", true, &second, {"no_such_function", "free"}},
                              {"third", true, &missing, {"neither", "nor"}},
                              {"fourth", false, &missing, {"optional_one"}}},
                             &audit);
  EXPECT_EQ(found, dlsym(library, "malloc"));
  EXPECT_EQ(second, dlsym(library, "free"));
  EXPECT_EQ(missing, nullptr);
  EXPECT_EQ(audit.MissingRequired(), "neither, nor");
  EXPECT_NE(audit.Text().find("libc.so.6\n"), std::string::npos) << audit.Text();
  EXPECT_NE(audit.Text().find("second (required): free\n"), std::string::npos) << audit.Text();
  EXPECT_NE(audit.Text().find("fourth (optional): missing, tried optional_one\n"), std::string::npos) << audit.Text();

  flagos_sdk::Audit none;
  EXPECT_EQ(flagos_sdk::OpenLibrary({"/nonexistent.so"}, nullptr, &none), nullptr);
  EXPECT_NE(none.reason.find("/nonexistent.so"), std::string::npos);
}

}  // namespace
}  // namespace torch_fl::test
