// The faults of kernels that read windows, as the emulator reports them.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/windows.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

std::vector<emulator::FaultKind> seen_faults;  // of the running test

void RecordFault(const emulator::Fault& fault) { seen_faults.push_back(fault.kind); }

// The first word at `from`.
QUIRE_KERNEL void CopyWord(const uint8_t* from, uint32_t* to) {
  QUIRE_SHARED_MEMORY(shared);
  CopyAsync16(shared, from, true);
  CommitCopies();
  WaitCopies<0>();
  *to = *reinterpret_cast<const uint32_t*>(shared);
}

QUIRE_KERNEL void LoadWord(const uint8_t* from, uint32_t* to) {
  *to = *reinterpret_cast<const uint32_t*>(from);
}

class EmulatorWindowsTest : public testing::Test {
 protected:
  EmulatorWindowsTest() : former_(emulator::SetFaultHandler(&RecordFault)) {
    seen_faults.clear();
    EXPECT_EQ(WindowPageBytes(&block_bytes_), 0);
    EXPECT_EQ(
        CreateWindows({.block_bytes = block_bytes_, .num_blocks = 4, .num_places = 8}, &windows_),
        0);
    EXPECT_EQ(CreateStream(&stream_), 0);
    for (int block = 0; block < 4; ++block) {
      auto* at = static_cast<uint8_t*>(windows_.pool) + static_cast<size_t>(block) * block_bytes_;
      EXPECT_EQ(FillBytes(at, block, block_bytes_, nullptr), 0);
    }
  }
  ~EmulatorWindowsTest() override {
    EXPECT_EQ(DestroyStream(stream_), 0);
    EXPECT_EQ(DestroyWindows(windows_.handle), 0);
    emulator::SetFaultHandler(former_);
  }

  int Map(int64_t place, BlockId block, int64_t count = 1) const {
    return MapPlaces(windows_.handle, place, block, count);
  }
  const uint8_t* Place(int64_t place) const {
    return static_cast<const uint8_t*>(windows_.places) + static_cast<size_t>(place) * block_bytes_;
  }
  int Copy(int64_t place) {
    return QUIRE_LAUNCH(CopyWord, dim3(1), dim3(1), 16, stream_, Place(place), word_.data());
  }
  uint32_t Word() const { return word_.ToHost()[0]; }

  size_t block_bytes_ = 0;
  Windows windows_;
  Stream stream_ = nullptr;
  DeviceArray<uint32_t> word_{1};

 private:
  emulator::FaultHandler former_;
};

TEST_F(EmulatorWindowsTest, ACopyFromAPlaceThatShowsNothingIsAFault) {
  ASSERT_EQ(Map(0, 1), 0);
  ASSERT_EQ(Copy(1), 0);

  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);

  EXPECT_EQ(seen_faults, std::vector{emulator::FaultKind::kEmptyPlace});
}

TEST_F(EmulatorWindowsTest, APlaceThatWasTakenDownShowsNothing) {
  ASSERT_EQ(Map(0, 1), 0);
  ASSERT_EQ(UnmapPlaces(windows_.handle, 0, 8), 0);
  ASSERT_EQ(Copy(0), 0);

  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);

  EXPECT_EQ(seen_faults, std::vector{emulator::FaultKind::kEmptyPlace});
}

TEST_F(EmulatorWindowsTest, APlaceThatIsMappedAnewWhileTheKernelWaitsIsAFault) {
  ASSERT_EQ(Map(0, 1), 0);
  ASSERT_EQ(Copy(0), 0);
  ASSERT_EQ(Map(0, 2), 0);

  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);

  EXPECT_EQ(seen_faults, std::vector{emulator::FaultKind::kChangedPlace});
}

TEST_F(EmulatorWindowsTest, OtherPlacesMayBeMappedWhileAKernelWaits) {
  ASSERT_EQ(Map(0, 1), 0);
  ASSERT_EQ(Copy(0), 0);
  ASSERT_EQ(Map(1, 2, 2), 0);

  EXPECT_EQ(Synchronize(stream_), 0);

  EXPECT_TRUE(seen_faults.empty());
  EXPECT_EQ(Word(), 0x01010101U);
}

TEST_F(EmulatorWindowsTest, AGraphSeesWhatIsShownWhenItIsLaunched) {
  Graph graph = nullptr;
  ASSERT_EQ(Map(0, 1), 0);
  ASSERT_EQ(BeginGraph(stream_), 0);
  ASSERT_EQ(Copy(0), 0);
  ASSERT_EQ(EndGraph(stream_, &graph), 0);
  ASSERT_EQ(Map(0, 3), 0);

  ASSERT_EQ(LaunchGraph(graph, stream_), 0);
  EXPECT_EQ(Synchronize(stream_), 0);
  EXPECT_EQ(Word(), 0x03030303U);

  ASSERT_EQ(LaunchGraph(graph, stream_), 0);
  ASSERT_EQ(Map(0, 2), 0);
  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);
  EXPECT_EQ(seen_faults, std::vector{emulator::FaultKind::kChangedPlace});
  EXPECT_EQ(DestroyGraph(graph), 0);
}

TEST_F(EmulatorWindowsTest, WindowsThatAreGoneAreFreedMemory) {
  Windows gone;
  ASSERT_EQ(CreateWindows({.block_bytes = block_bytes_, .num_blocks = 1, .num_places = 1}, &gone),
            0);
  Graph graph = nullptr;
  ASSERT_EQ(BeginGraph(stream_), 0);
  ASSERT_EQ(QUIRE_LAUNCH(CopyWord,
                         dim3(1),
                         dim3(1),
                         16,
                         stream_,
                         static_cast<const uint8_t*>(gone.places),
                         word_.data()),
            0);
  ASSERT_EQ(EndGraph(stream_, &graph), 0);
  ASSERT_EQ(DestroyWindows(gone.handle), 0);

  ASSERT_EQ(LaunchGraph(graph, stream_), 0);

  EXPECT_EQ(Synchronize(stream_), emulator::kErrorLaunchFailure);
  EXPECT_EQ(seen_faults, std::vector{emulator::FaultKind::kFreedMemory});
  EXPECT_EQ(DestroyGraph(graph), 0);
}

TEST_F(EmulatorWindowsTest, AnOrdinaryLoadFromAPlaceThatShowsNothingEndsTheProcess) {
  EXPECT_DEATH(QUIRE_LAUNCH(LoadWord, dim3(1), dim3(1), 0, nullptr, Place(3), word_.data()), "");
}

TEST_F(EmulatorWindowsTest, ThePoolIsMemoryOfTheDeviceAndPlacesAreNone) {
  constexpr size_t kBytes = size_t{64} << 20;
  DeviceInfo before;
  DeviceInfo with;
  DeviceInfo after;
  Windows windows;

  ASSERT_EQ(QueryDevice(0, &before), 0);
  ASSERT_EQ(CreateWindows({.block_bytes = kBytes, .num_blocks = 2, .num_places = 100}, &windows),
            0);
  ASSERT_EQ(QueryDevice(0, &with), 0);
  ASSERT_EQ(DestroyWindows(windows.handle), 0);
  ASSERT_EQ(QueryDevice(0, &after), 0);

  EXPECT_EQ(before.free_bytes - with.free_bytes, static_cast<int64_t>(2 * kBytes));
  EXPECT_EQ(after.free_bytes, before.free_bytes);
}

TEST_F(EmulatorWindowsTest, WhatIsNotThereIsRefused) {
  EXPECT_EQ(Map(-1, 0), emulator::kErrorInvalidValue);
  EXPECT_EQ(Map(7, 0, 2), emulator::kErrorInvalidValue);
  EXPECT_EQ(Map(0, 3, 2), emulator::kErrorInvalidValue);
  EXPECT_EQ(UnmapPlaces(windows_.handle, 8, 1), emulator::kErrorInvalidValue);
  EXPECT_EQ(Free(windows_.pool), emulator::kErrorInvalidValue);
  Windows windows;
  EXPECT_EQ(
      CreateWindows({.block_bytes = block_bytes_ + 1, .num_blocks = 1, .num_places = 1}, &windows),
      emulator::kErrorInvalidValue);
}

TEST(EmulatorPagesTest, TheEnvironmentMaySetTheSizeOfAGpusPages) {
  constexpr size_t kPageBytes = 2 << 20;
  ASSERT_EQ(::setenv("QUIRE_EMULATED_PAGE_BYTES", "2097152", 1), 0);
  size_t page_bytes = 0;
  EXPECT_EQ(WindowPageBytes(&page_bytes), 0);
  Windows windows;
  EXPECT_NE(
      CreateWindows({.block_bytes = kPageBytes / 2, .num_blocks = 2, .num_places = 2}, &windows), 0)
      << "a block fills no page";
  EXPECT_EQ(CreateWindows({.block_bytes = kPageBytes, .num_blocks = 2, .num_places = 2}, &windows),
            0);
  EXPECT_EQ(DestroyWindows(windows.handle), 0);
  ASSERT_EQ(::unsetenv("QUIRE_EMULATED_PAGE_BYTES"), 0);

  EXPECT_EQ(page_bytes, kPageBytes);
}

}  // namespace
}  // namespace quire::gpu
