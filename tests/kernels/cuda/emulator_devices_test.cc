// Two emulated devices: objects of one device must not be used with the other. The allowed uses are
// those of the CUDA C++ Programming Guide, "Multi-Device System".
#include <cstdint>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace {

using emulator::kErrorIllegalAddress;
using emulator::kErrorInvalidDevice;
using emulator::kErrorInvalidResourceHandle;
using emulator::kErrorInvalidValue;

constexpr size_t kBytes = 64;

QUIRE_KERNEL void AddOne(uint8_t* bytes) { ++bytes[threadIdx.x]; }

// The objects of one device.
struct OnDevice {
  Stream stream = nullptr;
  Event event = nullptr;
  uint8_t* memory = nullptr;
};

class DevicesTest : public ::testing::Test {
 protected:
  DevicesTest() {
    for (int32_t device = 0; device < 2; ++device) {
      EXPECT_EQ(SetDevice(device), 0);
      OnDevice& here = on_[device];
      void* memory = nullptr;
      EXPECT_EQ(CreateStream(&here.stream), 0);
      EXPECT_EQ(CreateTimedEvent(&here.event), 0);
      EXPECT_EQ(Allocate(&memory, kBytes), 0);
      here.memory = static_cast<uint8_t*>(memory);
      EXPECT_EQ(FillBytes(memory, 0, kBytes, nullptr), 0);
    }
    void* memory = nullptr;
    EXPECT_EQ(AllocatePinned(&memory, kBytes), 0);
    pinned_ = static_cast<uint8_t*>(memory);
    memset(pinned_, 1, kBytes);
    EXPECT_EQ(SetDevice(0), 0);
  }
  // Frees the objects of both devices while device 0 is current.
  ~DevicesTest() override {
    EXPECT_EQ(SetDevice(0), 0);
    for (OnDevice& here : on_) {
      EXPECT_EQ(DestroyEvent(here.event), 0);
      EXPECT_EQ(DestroyStream(here.stream), 0);
      EXPECT_EQ(Free(here.memory), 0);
    }
    EXPECT_EQ(FreePinned(pinned_), 0);
  }

  static int Count(uint8_t* bytes, Stream stream) {
    return QUIRE_LAUNCH(AddOne, dim3(1), dim3(kBytes), 0, stream, bytes);
  }

  OnDevice on_[2];
  uint8_t* pinned_ = nullptr;
};

TEST_F(DevicesTest, EveryThreadBeginsOnDeviceZero) {
  ASSERT_EQ(SetDevice(1), 0);
  ASSERT_EQ(Count(on_[1].memory, on_[1].stream), 0);
  std::thread([&] {
    EXPECT_EQ(Count(on_[1].memory, on_[1].stream), kErrorInvalidResourceHandle);
    EXPECT_EQ(Count(on_[1].memory, nullptr), kErrorIllegalAddress);
    EXPECT_EQ(SetDevice(1), 0);
    EXPECT_EQ(Count(on_[1].memory, on_[1].stream), 0);
    EXPECT_EQ(Synchronize(on_[1].stream), 0);
  }).join();
  EXPECT_EQ(on_[1].memory[0], 2);
}

TEST_F(DevicesTest, ThereAreTwo) {
  DeviceInfo info;
  for (const int32_t device : {-1, 2, 4095}) {
    EXPECT_EQ(SetDevice(device), kErrorInvalidDevice);
    EXPECT_EQ(QueryDevice(device, &info), kErrorInvalidDevice);
  }
  ASSERT_EQ(QueryDevice(1, &info), 0);
  EXPECT_EQ(info.index, 1);
  EXPECT_EQ(Count(on_[0].memory, on_[0].stream), 0);  // device 0 is still the current one
}

TEST_F(DevicesTest, MemoryIsTakenFromTheCurrentDevice) {
  constexpr size_t kTaken = 4096;
  DeviceInfo before[2];
  DeviceInfo after[2];
  ASSERT_EQ(QueryDevice(0, &before[0]), 0);
  ASSERT_EQ(QueryDevice(1, &before[1]), 0);
  void* memory = nullptr;
  void* pinned = nullptr;
  ASSERT_EQ(SetDevice(1), 0);
  ASSERT_EQ(Allocate(&memory, kTaken), 0);
  ASSERT_EQ(AllocatePinned(&pinned, kTaken), 0);
  ASSERT_EQ(QueryDevice(0, &after[0]), 0);
  ASSERT_EQ(QueryDevice(1, &after[1]), 0);
  EXPECT_EQ(after[0].free_bytes, before[0].free_bytes);
  EXPECT_EQ(after[1].free_bytes, before[1].free_bytes - int64_t{kTaken});
  ASSERT_EQ(SetDevice(0), 0);
  ASSERT_EQ(Free(memory), 0);
  ASSERT_EQ(FreePinned(pinned), 0);
  ASSERT_EQ(QueryDevice(1, &after[1]), 0);
  EXPECT_EQ(after[1].free_bytes, before[1].free_bytes);
}

TEST_F(DevicesTest, LaunchesGoToStreamsOfTheCurrentDevice) {
  EXPECT_EQ(Count(on_[1].memory, on_[1].stream), kErrorInvalidResourceHandle);
  EXPECT_EQ(FillBytes(on_[1].memory, 1, kBytes, on_[1].stream), kErrorInvalidResourceHandle);
  EXPECT_EQ(Count(on_[0].memory, on_[0].stream), 0);
}

TEST_F(DevicesTest, LaunchesTouchMemoryOfTheirDeviceAndPinnedMemory) {
  EXPECT_EQ(Count(on_[1].memory, on_[0].stream), kErrorIllegalAddress);
  EXPECT_EQ(Count(on_[1].memory + 7, nullptr), kErrorIllegalAddress);
  EXPECT_EQ(FillBytes(on_[1].memory, 1, kBytes, on_[0].stream), kErrorIllegalAddress);
  EXPECT_EQ(CopyOnDevice(on_[0].memory, on_[1].memory, kBytes, on_[0].stream),
            kErrorIllegalAddress);
  EXPECT_EQ(Count(pinned_, on_[0].stream), 0);
  EXPECT_EQ(Synchronize(on_[0].stream), 0);
  EXPECT_EQ(pinned_[0], 2);
  EXPECT_EQ(on_[1].memory[0], 0);
}

TEST_F(DevicesTest, CopiesTakeStreamsOfTheDeviceThatHasTheMemory) {
  ASSERT_EQ(CopyToDevice(on_[1].memory, pinned_, kBytes, on_[1].stream), 0);
  ASSERT_EQ(Synchronize(on_[1].stream), 0);
  EXPECT_EQ(on_[1].memory[0], 1);
  EXPECT_EQ(CopyToDevice(on_[1].memory, pinned_, kBytes, on_[0].stream), kErrorInvalidValue);
  EXPECT_EQ(CopyToHost(pinned_, on_[1].memory, kBytes, on_[0].stream), kErrorInvalidValue);
  EXPECT_EQ(CopyToHost(pinned_, on_[1].memory, kBytes, nullptr), kErrorInvalidValue);
  void* to[] = {on_[1].memory};
  const void* from[] = {pinned_};
  const size_t bytes[] = {kBytes};
  EXPECT_EQ(CopyMany(to, from, bytes, 1, on_[0].stream), kErrorInvalidValue);
  EXPECT_EQ(CopyMany(to, from, bytes, 1, on_[1].stream), 0);
}

TEST_F(DevicesTest, EventsAreRecordedOnStreamsOfTheirDevice) {
  EXPECT_EQ(RecordEvent(on_[1].event, on_[0].stream), kErrorInvalidResourceHandle);
  EXPECT_EQ(RecordEvent(on_[0].event, on_[1].stream), kErrorInvalidResourceHandle);
  EXPECT_EQ(RecordEvent(on_[1].event, nullptr), kErrorInvalidResourceHandle);
  ASSERT_EQ(RecordEvent(on_[0].event, on_[0].stream), 0);
  ASSERT_EQ(RecordEvent(on_[1].event, on_[1].stream), 0);
  float milliseconds = 0.0F;
  EXPECT_EQ(ElapsedMilliseconds(on_[0].event, on_[1].event, &milliseconds),
            kErrorInvalidResourceHandle);
}

TEST_F(DevicesTest, EventsAreWaitedForFromAnyDevice) {
  ASSERT_EQ(SetDevice(1), 0);
  ASSERT_EQ(FillBytes(on_[1].memory, 5, kBytes, on_[1].stream), 0);
  ASSERT_EQ(RecordEvent(on_[1].event, on_[1].stream), 0);
  ASSERT_EQ(SetDevice(0), 0);
  bool has_happened = true;
  EXPECT_EQ(QueryEvent(on_[1].event, &has_happened), 0);
  EXPECT_EQ(WaitForEvent(on_[1].event, on_[0].stream), 0);
  EXPECT_EQ(Synchronize(on_[0].stream), 0);
  EXPECT_EQ(on_[1].memory[0], 5);
  EXPECT_EQ(SynchronizeEvent(on_[1].event), 0);
}

TEST_F(DevicesTest, AGraphRunsOnTheDeviceThatRecordedIt) {
  Graph graph = nullptr;
  ASSERT_EQ(BeginGraph(on_[0].stream), 0);
  ASSERT_EQ(Count(on_[0].memory, on_[0].stream), 0);
  ASSERT_EQ(EndGraph(on_[0].stream, &graph), 0);

  EXPECT_EQ(LaunchGraph(graph, on_[1].stream), kErrorInvalidResourceHandle);
  ASSERT_EQ(SetDevice(1), 0);
  EXPECT_EQ(LaunchGraph(graph, on_[1].stream), kErrorInvalidResourceHandle);
  EXPECT_EQ(LaunchGraph(graph, on_[0].stream), kErrorInvalidResourceHandle);
  ASSERT_EQ(SetDevice(0), 0);
  EXPECT_EQ(LaunchGraph(graph, on_[0].stream), 0);
  ASSERT_EQ(Synchronize(on_[0].stream), 0);
  EXPECT_EQ(on_[0].memory[0], 1);
  ASSERT_EQ(DestroyGraph(graph), 0);
}

// A struct is made where another one was, with a pointer in the place of its padding. Memory begins
// at multiples of 256, so the pointer's first byte is a member that is 0.
TEST_F(DevicesTest, WhatIsLeftBetweenMembersIsNoReference) {
#if !__has_builtin(__builtin_clear_padding)
  GTEST_SKIP() << "the compiler cannot clear padding";
#endif
  struct Padded {
    uint8_t kind;
    uint8_t* memory;
  };
  Padded padded;
  memcpy(static_cast<void*>(&padded), &on_[1].memory, sizeof(on_[1].memory));
  padded.kind = 0;
  padded.memory = on_[0].memory;
  emulator::References references;
  references.AddPointersIn(padded);
  EXPECT_TRUE(references.AreReachableFrom(0));
  padded.memory = on_[1].memory;
  references.AddPointersIn(padded);
  EXPECT_FALSE(references.AreReachableFrom(0));
}

}  // namespace
}  // namespace quire::gpu
