// Graphs of the emulated runtime: recording, calls that are forbidden meanwhile, and graphs that
// refer to freed memory.
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/seen_faults.h"

namespace quire::gpu {
namespace {

using emulator::FaultKind;

constexpr size_t kBytes = 64;

struct AddArgs {
  int32_t count = 0;
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
};
QUIRE_KERNEL void Add(AddArgs args) { args.to[threadIdx.x] += args.from[threadIdx.x]; }

class GraphTest : public ::testing::Test {
 protected:
  GraphTest() {
    EXPECT_EQ(CreateStream(&stream_), 0);
    EXPECT_EQ(CreateEvent(&event_), 0);
    device_ = Bytes(&Allocate);
    host_ = Bytes(&AllocatePinned);
    EXPECT_EQ(FillBytes(device_, 0, kBytes, nullptr), 0);
    memset(host_, 1, kBytes);
  }
  ~GraphTest() override {
    EXPECT_EQ(DestroyEvent(event_), 0);
    EXPECT_EQ(DestroyStream(stream_), 0);
    EXPECT_EQ(Free(device_), 0);
    EXPECT_EQ(FreePinned(host_), 0);
  }

  static uint8_t* Bytes(int (*allocate)(void**, size_t)) {
    void* memory = nullptr;
    EXPECT_EQ(allocate(&memory, kBytes), 0);
    return static_cast<uint8_t*>(memory);
  }
  int AddTo(uint8_t* to, const uint8_t* from) {
    return QUIRE_LAUNCH(Add, dim3(1), dim3(kBytes), 0, stream_, AddArgs{1, from, to});
  }
  Graph Record(const std::function<int()>& operations) {
    Graph graph = nullptr;
    EXPECT_EQ(BeginGraph(stream_), 0);
    EXPECT_EQ(operations(), 0);
    EXPECT_EQ(EndGraph(stream_, &graph), 0);
    return graph;
  }
  int Launch(Graph graph) {
    const int error = LaunchGraph(graph, stream_);
    return error != 0 ? error : Synchronize(stream_);
  }

  // Expects the call to be refused, and the recording to end without a graph.
  void ExpectRefused(const std::string& what, int expected, const std::function<int()>& call) {
    SCOPED_TRACE(what);
    Graph graph = nullptr;
    ASSERT_EQ(BeginGraph(stream_), 0);
    EXPECT_EQ(RecordEvent(event_, stream_), 0);
    EXPECT_EQ(AddTo(device_, host_), 0);
    EXPECT_EQ(call(), expected);
    EXPECT_EQ(AddTo(device_, host_), emulator::kErrorCaptureInvalidated);
    EXPECT_EQ(EndGraph(stream_, &graph), emulator::kErrorCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(Synchronize(stream_), 0);
    EXPECT_EQ(device_[0], 0);  // nothing of it was run
  }

  SeenFaults faults_;
  Stream stream_ = nullptr;
  Event event_ = nullptr;
  uint8_t* device_ = nullptr;
  uint8_t* host_ = nullptr;
};

TEST_F(GraphTest, WhatIsRecordedRunsWhenTheGraphIsLaunched) {
  uint8_t* second = Bytes(&Allocate);
  Graph graph = Record([&] {
    EXPECT_EQ(FillBytes(device_, 3, kBytes, stream_), 0);
    EXPECT_EQ(AddTo(device_, host_), 0);
    EXPECT_EQ(CopyOnDevice(second, device_, kBytes, stream_), 0);
    EXPECT_EQ(RecordEvent(event_, stream_), 0);
    EXPECT_EQ(WaitForEvent(event_, stream_), 0);
    return CopyToHost(host_, second, kBytes, stream_);
  });
  EXPECT_EQ(device_[0], 0);
  EXPECT_EQ(host_[0], 1);

  ASSERT_EQ(Launch(graph), 0);
  EXPECT_EQ(host_[0], 4);
  ASSERT_EQ(Launch(graph), 0);
  EXPECT_EQ(host_[0], 7);

  ASSERT_EQ(DestroyGraph(graph), 0);
  ASSERT_EQ(Free(second), 0);
}

TEST_F(GraphTest, MemoryIsNeitherTakenNorGivenBackWhileRecording) {
  constexpr int kRefused = emulator::kErrorCaptureUnsupported;
  void* memory = nullptr;
  ExpectRefused("Allocate", kRefused, [&] { return Allocate(&memory, kBytes); });
  ExpectRefused("AllocatePinned", kRefused, [&] { return AllocatePinned(&memory, kBytes); });
  ExpectRefused("Free", kRefused, [&] { return Free(device_); });
  ExpectRefused("FreePinned", kRefused, [&] { return FreePinned(host_); });
}

TEST_F(GraphTest, WhatIsRecordedIsNotWaitedFor) {
  constexpr int kCaptured = emulator::kErrorCapturedEvent;
  bool has_happened = false;
  Event outside = nullptr;
  ASSERT_EQ(CreateEvent(&outside), 0);
  ASSERT_EQ(RecordEvent(outside, nullptr), 0);
  ExpectRefused(
      "Synchronize", emulator::kErrorCaptureUnsupported, [&] { return Synchronize(stream_); });
  ExpectRefused("QueryEvent", kCaptured, [&] { return QueryEvent(event_, &has_happened); });
  ExpectRefused("SynchronizeEvent", kCaptured, [&] { return SynchronizeEvent(event_); });
  ExpectRefused("WaitForEvent", emulator::kErrorCaptureIsolation, [&] {
    return WaitForEvent(outside, stream_);
  });
  ExpectRefused("WaitForEvent elsewhere", emulator::kErrorCaptureUnsupported, [&] {
    return WaitForEvent(event_, nullptr);
  });
  ASSERT_EQ(DestroyEvent(outside), 0);
}

TEST_F(GraphTest, CopiesOfMemoryThatIsNotPinnedAreNotRecorded) {
  constexpr int kRefused = emulator::kErrorCaptureUnsupported;
  std::vector<uint8_t> heap(kBytes);
  void* to[] = {device_};
  const void* from[] = {host_};
  const size_t bytes[] = {kBytes};
  ExpectRefused("CopyToDevice", kRefused, [&] {
    return CopyToDevice(device_, heap.data(), kBytes, stream_);
  });
  ExpectRefused(
      "CopyToHost", kRefused, [&] { return CopyToHost(heap.data(), device_, kBytes, stream_); });
  ExpectRefused("CopyMany", kRefused, [&] { return CopyMany(to, from, bytes, 1, stream_); });
}

TEST_F(GraphTest, GraphsAndStreamsAreNotPartOfARecord) {
  constexpr int kRefused = emulator::kErrorCaptureUnsupported;
  Graph graph = Record([&] { return AddTo(device_, host_); });
  ExpectRefused("LaunchGraph", kRefused, [&] { return LaunchGraph(graph, stream_); });
  ExpectRefused("DestroyStream", kRefused, [&] { return DestroyStream(stream_); });
  ASSERT_EQ(DestroyGraph(graph), 0);
}

TEST_F(GraphTest, OtherStreamsAndThreadsGoOnWhileOneRecords) {
  uint8_t* second = Bytes(&Allocate);
  Graph graph = Record([&] {
    std::thread([] {
      uint8_t* memory = Bytes(&Allocate);
      EXPECT_EQ(Free(memory), 0);
    }).join();
    EXPECT_EQ(FillBytes(second, 8, kBytes, nullptr), 0);
    EXPECT_EQ(Synchronize(nullptr), 0);
    EXPECT_EQ(second[0], 8);
    return AddTo(device_, second);
  });
  ASSERT_EQ(Launch(graph), 0);
  EXPECT_EQ(device_[0], 8);
  ASSERT_EQ(DestroyGraph(graph), 0);
  ASSERT_EQ(Free(second), 0);
}

TEST_F(GraphTest, ARecordIsEndedWhereItWasBegun) {
  Graph graph = nullptr;
  EXPECT_EQ(EndGraph(stream_, &graph), emulator::kErrorInvalidValue);
  EXPECT_EQ(BeginGraph(nullptr), emulator::kErrorCaptureUnsupported);
  ASSERT_EQ(BeginGraph(stream_), 0);
  EXPECT_EQ(BeginGraph(stream_), emulator::kErrorInvalidValue);
  bool is_recording = false;
  EXPECT_EQ(IsRecording(stream_, &is_recording), 0);
  EXPECT_TRUE(is_recording);
  std::thread([&] {
    EXPECT_EQ(EndGraph(stream_, &graph), emulator::kErrorCaptureWrongThread);
  }).join();
  ASSERT_EQ(EndGraph(stream_, &graph), 0);
  EXPECT_EQ(IsRecording(stream_, &is_recording), 0);
  EXPECT_FALSE(is_recording);
  ASSERT_EQ(DestroyGraph(graph), 0);
  EXPECT_EQ(LaunchGraph(graph, stream_), emulator::kErrorInvalidResourceHandle);
}

// The kernel's pointer keeps its value, but new memory may lie at that address.
TEST_F(GraphTest, ARecordOfMemoryThatWasFreedIsAFault) {
  struct Memory {
    int (*allocate)(void**, size_t);
    int (*free)(void*);
  };
  for (const Memory& kind : {Memory{&Allocate, &Free}, Memory{&AllocatePinned, &FreePinned}}) {
    const SeenFaults faults;
    uint8_t* memory = Bytes(kind.allocate);
    Graph graph = Record([&] { return AddTo(device_, memory + 8); });
    ASSERT_EQ(kind.free(memory), 0);
    std::vector<uint8_t*> others;  // one of them may lie where it lay
    for (int i = 0; i < 8; ++i) {
      others.push_back(Bytes(kind.allocate));
    }

    EXPECT_EQ(Launch(graph), emulator::kErrorLaunchFailure);

    ASSERT_EQ(faults.all().size(), 1U);
    EXPECT_EQ(faults.all()[0].kind, FaultKind::kFreedMemory);
    EXPECT_EQ(faults.all()[0].operation, "Add");
    EXPECT_NE(faults.all()[0].text.find("Add"), std::string::npos);
    EXPECT_EQ(device_[0], 0);
    ASSERT_EQ(DestroyGraph(graph), 0);
    for (uint8_t* other : others) {
      ASSERT_EQ(kind.free(other), 0);
    }
  }
}

// Whether an address is given out again is the heap's to decide, so this asks for what would be
// then.
TEST_F(GraphTest, OtherMemoryAtTheSameAddressIsOtherMemory) {
  const auto allocation = emulator::FindAllocation(device_);
  ASSERT_TRUE(allocation.has_value());
  emulator::Allocation before_it = *allocation;
  --before_it.number;

  EXPECT_TRUE(emulator::IsAllocated(*allocation));
  EXPECT_FALSE(emulator::IsAllocated(before_it));
}

TEST_F(GraphTest, ARecordedCopyOfMemoryThatWasFreedIsAFault) {
  uint8_t* memory = Bytes(&Allocate);
  Graph graph = Record([&] { return CopyToHost(host_, memory, kBytes, stream_); });
  ASSERT_EQ(Free(memory), 0);

  EXPECT_EQ(Launch(graph), emulator::kErrorLaunchFailure);
  ASSERT_EQ(faults_.all().size(), 1U);
  EXPECT_EQ(faults_.all()[0].kind, FaultKind::kFreedMemory);
  EXPECT_EQ(faults_.all()[0].operation, "CopyToHost");
  ASSERT_EQ(DestroyGraph(graph), 0);
}

TEST_F(GraphTest, ALaunchIsDoneAfterItsGraphWasDestroyed) {
  Graph graph = Record([&] { return AddTo(device_, host_); });
  ASSERT_EQ(LaunchGraph(graph, stream_), 0);
  ASSERT_EQ(DestroyGraph(graph), 0);

  ASSERT_EQ(Synchronize(stream_), 0);

  EXPECT_EQ(device_[0], 1);
}

}  // namespace
}  // namespace quire::gpu
