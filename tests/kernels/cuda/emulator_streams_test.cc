// Streams, events and copies of the emulated runtime: the order in which they run, and the mistakes
// that the emulator finds.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/seen_faults.h"

namespace quire::gpu {
namespace {

using emulator::FaultKind;

constexpr size_t kBytes = 64;
constexpr uint8_t kInFlight = 0xFF;

QUIRE_KERNEL void AddOne(uint8_t* bytes) { ++bytes[threadIdx.x]; }

class StreamTest : public ::testing::Test {
 protected:
  StreamTest() {
    EXPECT_EQ(CreateStream(&stream_), 0);
    EXPECT_EQ(CreateStream(&other_), 0);
    EXPECT_EQ(CreateTimedEvent(&event_), 0);
    void* memory = nullptr;
    EXPECT_EQ(Allocate(&memory, kBytes), 0);
    device_ = static_cast<uint8_t*>(memory);
    EXPECT_EQ(AllocatePinned(&memory, kBytes), 0);
    host_ = static_cast<uint8_t*>(memory);
    memset(host_, 1, kBytes);
  }
  ~StreamTest() override {
    EXPECT_EQ(DestroyEvent(event_), 0);
    EXPECT_EQ(DestroyStream(other_), 0);
    EXPECT_EQ(DestroyStream(stream_), 0);
    EXPECT_EQ(Free(device_), 0);
    EXPECT_EQ(FreePinned(host_), 0);
  }

  int CopyUp(Stream stream) { return CopyToDevice(device_, host_, kBytes, stream); }
  int CopyDown(Stream stream) { return CopyToHost(host_, device_, kBytes, stream); }
  int Fill(int value, Stream stream) { return FillBytes(device_, value, kBytes, stream); }
  int Count(Stream stream) {
    return QUIRE_LAUNCH(AddOne, dim3(1), dim3(kBytes), 0, stream, device_);
  }
  void ExpectFault(FaultKind kind, const std::string& operation) {
    ASSERT_EQ(faults_.all().size(), 1U);
    EXPECT_EQ(faults_.all()[0].kind, kind);
    EXPECT_EQ(faults_.all()[0].operation, operation) << faults_.all()[0].text;
  }

  SeenFaults faults_;
  Stream stream_ = nullptr;
  Stream other_ = nullptr;
  Event event_ = nullptr;
  uint8_t* device_ = nullptr;
  uint8_t* host_ = nullptr;
};

TEST_F(StreamTest, WhatIsEnqueuedRunsWhenTheStreamIsWaitedFor) {
  ASSERT_EQ(Fill(3, stream_), 0);
  ASSERT_EQ(Count(stream_), 0);
  EXPECT_EQ(device_[0], 0xFF);

  ASSERT_EQ(Synchronize(stream_), 0);

  EXPECT_EQ(device_[0], 4);
  EXPECT_EQ(device_[kBytes - 1], 4);
}

TEST_F(StreamTest, TheDefaultStreamRunsAtOnce) {
  ASSERT_EQ(Fill(3, nullptr), 0);
  ASSERT_EQ(Count(nullptr), 0);

  EXPECT_EQ(device_[0], 4);
}

TEST_F(StreamTest, ACopyToTheHostIsThereWhenTheStreamWasWaitedFor) {
  std::vector<uint8_t> heap(kBytes, 7);
  for (Stream stream : {stream_, Stream{nullptr}}) {
    memset(host_, 7, kBytes);
    heap.assign(kBytes, 7);
    ASSERT_EQ(Fill(5, stream), 0);
    ASSERT_EQ(CopyDown(stream), 0);
    ASSERT_EQ(CopyToHost(heap.data(), device_, kBytes, stream), 0);
    EXPECT_NE(host_[0], 5);
    EXPECT_NE(heap[0], 5);

    ASSERT_EQ(Synchronize(stream), 0);

    EXPECT_EQ(host_[kBytes - 1], 5);
    EXPECT_EQ(heap[kBytes - 1], 5);
  }
}

TEST_F(StreamTest, WhereACopyGoesIsPoisonUntilItIsWaitedFor) {
  memset(host_, 7, kBytes);
  ASSERT_EQ(Fill(5, nullptr), 0);
  ASSERT_EQ(CopyDown(stream_), 0);
  EXPECT_EQ(host_[0], kInFlight);
  ASSERT_EQ(Synchronize(stream_), 0);

  ASSERT_EQ(CopyUp(stream_), 0);
  EXPECT_EQ(device_[0], kInFlight);
  ASSERT_EQ(Count(nullptr), 0);  // reads it, on a stream that does not wait

  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);
  ExpectFault(FaultKind::kChangedInFlight, "CopyToDevice");
}

TEST_F(StreamTest, ACopyBeginsWhenWhatIsBeforeItIsDone) {
  void* second = nullptr;
  ASSERT_EQ(Allocate(&second, kBytes), 0);
  ASSERT_EQ(Fill(9, stream_), 0);
  ASSERT_EQ(CopyOnDevice(second, device_, kBytes, stream_), 0);
  ASSERT_EQ(CopyUp(stream_), 0);
  ASSERT_EQ(Count(stream_), 0);

  ASSERT_EQ(Synchronize(stream_), 0);

  EXPECT_EQ(static_cast<const uint8_t*>(second)[0], 9);
  EXPECT_EQ(device_[0], 2);
  ASSERT_EQ(Free(second), 0);
}

TEST_F(StreamTest, MemoryThatIsNotPinnedIsReadBeforeTheCallReturns) {
  std::vector<uint8_t> heap(kBytes, 7);
  ASSERT_EQ(CopyToDevice(device_, heap.data(), kBytes, stream_), 0);
  heap.assign(kBytes, 8);

  ASSERT_EQ(Synchronize(stream_), 0);

  EXPECT_EQ(device_[0], 7);
}

TEST_F(StreamTest, PinnedMemoryThatIsWrittenTooEarlyIsAFault) {
  ASSERT_EQ(CopyUp(stream_), 0);
  ASSERT_EQ(RecordEvent(event_, stream_), 0);
  host_[kBytes - 1] = 2;  // without waiting for the event

  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);
  ExpectFault(FaultKind::kChangedInFlight, "CopyToDevice");
}

TEST_F(StreamTest, PinnedMemoryThatIsFreedTooEarlyIsAFault) {
  void* staging = nullptr;
  ASSERT_EQ(AllocatePinned(&staging, kBytes), 0);
  ASSERT_EQ(CopyToDevice(device_, staging, kBytes, stream_), 0);
  ASSERT_EQ(FreePinned(staging), 0);

  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);
  ExpectFault(FaultKind::kFreedMemory, "CopyToDevice");
}

TEST_F(StreamTest, DeviceMemoryIsFreedWhenItsStreamsAreDone) {
  void* memory = nullptr;
  ASSERT_EQ(Allocate(&memory, kBytes), 0);
  ASSERT_EQ(FillBytes(memory, 6, kBytes, stream_), 0);
  ASSERT_EQ(CopyToHost(host_, memory, kBytes, stream_), 0);

  ASSERT_EQ(Free(memory), 0);

  EXPECT_EQ(host_[0], 6);
  EXPECT_TRUE(faults_.all().empty());
}

TEST_F(StreamTest, AStreamGoesOnAfterTheEventThatItWaitsFor) {
  ASSERT_EQ(Fill(4, stream_), 0);
  ASSERT_EQ(RecordEvent(event_, stream_), 0);
  ASSERT_EQ(WaitForEvent(event_, other_), 0);
  ASSERT_EQ(CopyDown(other_), 0);

  ASSERT_EQ(Synchronize(other_), 0);

  EXPECT_EQ(host_[0], 4);
}

TEST_F(StreamTest, AStreamThatDoesNotWaitIsFound) {
  ASSERT_EQ(Fill(4, stream_), 0);
  ASSERT_EQ(CopyDown(other_), 0);
  ASSERT_EQ(Synchronize(stream_), 0);

  EXPECT_EQ(Synchronize(other_), emulator::kErrorLaunchFailure);
  ExpectFault(FaultKind::kChangedInFlight, "CopyToHost");
}

TEST_F(StreamTest, CopiesOfManyAreOneOperation) {
  void* to[] = {device_, device_ + 32};
  const void* from[] = {host_, host_ + 40};
  const size_t bytes[] = {16, 8};
  ASSERT_EQ(CopyMany(to, from, bytes, 2, stream_), 0);
  EXPECT_EQ(device_[0], kInFlight);
  EXPECT_EQ(device_[32], kInFlight);

  ASSERT_EQ(Synchronize(stream_), 0);

  EXPECT_EQ(device_[15], 1);
  EXPECT_EQ(device_[16], 0xFF);
  EXPECT_EQ(device_[39], 1);
}

TEST_F(StreamTest, CopiesOfManyAreBetweenPinnedMemoryAndTheDevice) {
  std::vector<uint8_t> heap(kBytes);
  void* to[] = {device_};
  const size_t bytes[] = {kBytes};
  const size_t too_many[] = {kBytes + 1};
  const void* pinned[] = {host_};
  const void* on_heap[] = {heap.data()};

  EXPECT_EQ(CopyMany(to, pinned, bytes, 1, nullptr), emulator::kErrorInvalidValue);
  EXPECT_EQ(CopyMany(to, on_heap, bytes, 1, stream_), emulator::kErrorInvalidValue);
  EXPECT_EQ(CopyMany(to, pinned, too_many, 1, stream_), emulator::kErrorInvalidValue);
}

TEST_F(StreamTest, AnEventHappensSomeTimeAfterItIsAskedFor) {
  bool has_happened = false;
  ASSERT_EQ(QueryEvent(event_, &has_happened), 0);
  EXPECT_TRUE(has_happened);  // as long as it was never recorded
  ASSERT_EQ(Fill(4, stream_), 0);
  ASSERT_EQ(RecordEvent(event_, stream_), 0);
  int num_queries = 0;
  do {
    ASSERT_EQ(QueryEvent(event_, &has_happened), 0);
    EXPECT_EQ(has_happened, device_[0] == 4);
    ++num_queries;
  } while (!has_happened && num_queries < 100);
  EXPECT_GT(num_queries, 1);
  EXPECT_TRUE(has_happened);
}

TEST_F(StreamTest, WaitingForAnEventRunsNothingBehindIt) {
  ASSERT_EQ(Fill(4, stream_), 0);
  ASSERT_EQ(RecordEvent(event_, stream_), 0);
  ASSERT_EQ(Count(stream_), 0);

  ASSERT_EQ(SynchronizeEvent(event_), 0);
  EXPECT_EQ(device_[0], 4);

  ASSERT_EQ(Synchronize(stream_), 0);
  EXPECT_EQ(device_[0], 5);
}

TEST_F(StreamTest, WaitingForAnEventTellsWhatFailedBeforeIt) {
  ASSERT_EQ(CopyUp(stream_), 0);
  ASSERT_EQ(RecordEvent(event_, stream_), 0);
  host_[3] = 7;

  EXPECT_EQ(SynchronizeEvent(event_), emulator::kErrorLaunchFailure);
  EXPECT_EQ(Synchronize(stream_), 0) << "an error is told once";
}

TEST_F(StreamTest, TimeBetweenEventsIsKnownWhenBothHaveHappened) {
  float milliseconds = -1.0F;
  ASSERT_EQ(Count(stream_), 0);
  ASSERT_EQ(RecordEvent(event_, stream_), 0);
  EXPECT_EQ(ElapsedMilliseconds(event_, event_, &milliseconds), emulator::kErrorNotReady);

  ASSERT_EQ(Synchronize(stream_), 0);

  ASSERT_EQ(ElapsedMilliseconds(event_, event_, &milliseconds), 0);
  EXPECT_EQ(milliseconds, 0.0F);
}

TEST_F(StreamTest, AnEventThatIsNotTimedHasNoTime) {
  Event untimed = nullptr;
  ASSERT_EQ(CreateEvent(&untimed), 0);
  for (Event event : {untimed, event_}) {
    ASSERT_EQ(RecordEvent(event, stream_), 0);
  }
  ASSERT_EQ(Synchronize(stream_), 0);
  float milliseconds = 0.0F;

  EXPECT_EQ(ElapsedMilliseconds(untimed, event_, &milliseconds),
            emulator::kErrorInvalidResourceHandle);
  EXPECT_EQ(ElapsedMilliseconds(event_, untimed, &milliseconds),
            emulator::kErrorInvalidResourceHandle);
  EXPECT_EQ(DestroyEvent(untimed), 0);
}

TEST_F(StreamTest, MemoryIsFreedAsWhatItIsAndOnce) {
  EXPECT_EQ(Free(nullptr), 0);
  EXPECT_EQ(Free(host_), emulator::kErrorInvalidValue);
  EXPECT_EQ(Free(device_ + 1), emulator::kErrorInvalidValue);
  EXPECT_EQ(FreePinned(device_), emulator::kErrorInvalidValue);
  void* memory = nullptr;
  ASSERT_EQ(Allocate(&memory, kBytes), 0);
  ASSERT_EQ(Free(memory), 0);
  EXPECT_EQ(Free(memory), emulator::kErrorInvalidValue);
}

// An operation that waits for other ranks, as a library for collectives puts on a stream.
TEST(OperationThatNeedsOthersTest, WaitsOnTheStreamUntilTheyCome) {
  Stream stream = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);
  Event event = nullptr;
  ASSERT_EQ(CreateEvent(&event), 0);
  bool have_come = false;
  int num_runs = 0;
  ASSERT_EQ(emulator::Enqueue(stream,
                              {.name = "others",
                               .run =
                                   [&] {
                                     ++num_runs;
                                     return 0;
                                   },
                               .is_ready = [&] { return have_come; }}),
            0);
  ASSERT_EQ(RecordEvent(event, stream), 0);
  bool has_happened = true;
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(QueryEvent(event, &has_happened), 0);
    EXPECT_FALSE(has_happened);
  }
  EXPECT_EQ(num_runs, 0);
  have_come = true;
  ASSERT_EQ(QueryEvent(event, &has_happened), 0);
  EXPECT_TRUE(has_happened);
  EXPECT_EQ(num_runs, 1);
  EXPECT_EQ(DestroyEvent(event), 0);
  EXPECT_EQ(DestroyStream(stream), 0);
}

TEST(OperationThatNeedsOthersTest, IsAFaultForWhoWaitsWithoutAWayOut) {
  for (const bool by_event : {false, true}) {
    SeenFaults faults;
    Stream stream = nullptr;
    ASSERT_EQ(CreateStream(&stream), 0);
    Event event = nullptr;
    ASSERT_EQ(CreateEvent(&event), 0);
    ASSERT_EQ(emulator::Enqueue(stream, {.name = "others", .is_ready = [] { return false; }}), 0);
    ASSERT_EQ(RecordEvent(event, stream), 0);
    EXPECT_EQ(by_event ? SynchronizeEvent(event) : Synchronize(stream),
              emulator::kErrorLaunchFailure);
    ASSERT_EQ(faults.all().size(), 1U);
    EXPECT_EQ(faults.all().front().kind, FaultKind::kDeadlock);
    EXPECT_EQ(faults.all().front().operation, "others");
    EXPECT_EQ(DestroyEvent(event), 0);
    EXPECT_EQ(DestroyStream(stream), 0);
  }
}

}  // namespace
}  // namespace quire::gpu
