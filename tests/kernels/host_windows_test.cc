#include "kernels/api/host_windows.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 8;
constexpr int64_t kNumPlaces = 12;

int64_t NumOpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

// Counts the process's mappings of KV pools, including the places that show them.
int64_t NumMappingsOfPools() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:kv-cache") != std::string::npos ? 1 : 0;
  }
  return count;
}

class HostWindowsTest : public testing::Test {
 protected:
  HostWindowsTest() {
    auto made = MakeHostWindows(
        {.block_bytes = block_bytes_, .num_blocks = kNumBlocks, .num_places = kNumPlaces});
    EXPECT_TRUE(made.ok()) << made.status();
    windows_ = *std::move(made);
  }

  // Each block is full of its own letter.
  void FillPool() {
    for (BlockId block = 0; block < kNumBlocks; ++block) {
      std::fill_n(Block(block), block_bytes_, Letter(block));
    }
  }
  static char Letter(BlockId block) { return static_cast<char>('a' + block); }

  char* Block(BlockId block) const {
    return static_cast<char*>(windows_->pool()) + block * block_bytes_;
  }
  volatile char* Place(int64_t place) const {
    return static_cast<char*>(windows_->windows()) + place * block_bytes_;
  }
  // What `count` places from `place` on show, or '?' for one whose bytes differ.
  std::string Shown(int64_t place, int64_t count) const {
    std::string letters;
    for (; count > 0; ++place, --count) {
      const volatile char* const bytes = Place(place);
      const bool are_same =
          std::all_of(bytes, bytes + block_bytes_, [&](char byte) { return byte == bytes[0]; });
      letters += are_same ? bytes[0] : '?';
    }
    return letters;
  }

  const int64_t block_bytes_ = 2 * HostPageBytes();
  std::unique_ptr<WindowMemory> windows_;
};

using HostWindowsDeathTest = HostWindowsTest;

TEST_F(HostWindowsTest, ABlockReadsTheSameThroughEveryPlaceThatShowsIt) {
  FillPool();

  ASSERT_TRUE(windows_->Map(1, 5, 1).ok());
  ASSERT_TRUE(windows_->Map(2, 5, 1).ok());
  ASSERT_TRUE(windows_->Map(11, 5, 1).ok());

  EXPECT_EQ(Shown(1, 2), "ff");
  EXPECT_EQ(Shown(11, 1), "f");
}

TEST_F(HostWindowsTest, WhatIsWrittenAfterMappingIsSeen) {
  ASSERT_TRUE(windows_->Map(0, 3, 2).ok());
  ASSERT_TRUE(windows_->Map(7, 4, 1).ok());

  FillPool();

  EXPECT_EQ(Shown(0, 2), "de");
  EXPECT_EQ(Shown(7, 1), "e");
}

TEST_F(HostWindowsTest, APlaceThatIsMappedAnewShowsTheNewBlock) {
  FillPool();
  ASSERT_TRUE(windows_->Map(4, 1, 3).ok());

  ASSERT_TRUE(windows_->Map(5, 7, 1).ok());

  EXPECT_EQ(Shown(4, 3), "bhd");
}

TEST_F(HostWindowsTest, NeighboursAreMappedInOneCall) {
  FillPool();

  ASSERT_TRUE(windows_->Map(4, 0, kNumBlocks).ok());

  EXPECT_EQ(Shown(4, kNumBlocks), "abcdefgh");
}

TEST_F(HostWindowsTest, ClearMakesAllZeroAndKeepsWhatPlacesShow) {
  FillPool();
  ASSERT_TRUE(windows_->Map(3, 2, 2).ok());

  ASSERT_TRUE(windows_->Clear().ok());

  EXPECT_EQ(Shown(3, 2), std::string(2, '\0'));
  EXPECT_EQ(std::count(Block(0), Block(kNumBlocks), '\0'), kNumBlocks * block_bytes_);
  FillPool();
  EXPECT_EQ(Shown(3, 2), "cd");
}

// smaps has a line of flags for each mapping; dd means that core dumps leave it out.
TEST_F(HostWindowsTest, NothingOfItGoesIntoCoreDumps) {
  ASSERT_TRUE(windows_->Map(0, 1, 1).ok());
  ASSERT_TRUE(windows_->Map(3, 5, 2).ok());

  std::ifstream smaps("/proc/self/smaps");
  bool is_of_pool = false;
  int num_seen = 0;
  for (std::string line; std::getline(smaps, line);) {
    const bool is_header = line.find('-') < line.find(' ');
    is_of_pool = is_header ? line.find("memfd:kv-cache") != std::string::npos : is_of_pool;
    if (is_of_pool && line.starts_with("VmFlags:")) {
      EXPECT_NE((line + " ").find(" dd "), std::string::npos) << line;
      ++num_seen;
    }
  }
  EXPECT_GE(num_seen, 3);
}

TEST_F(HostWindowsTest, TheLimitLeavesRoomForAProcessAroundIt) {
  EXPECT_LT(windows_->max_mapped_places(), MaxMappings() / 2);
}

TEST_F(HostWindowsTest, PlacesThatShowNothingMayBeUnmappedAgain) {
  FillPool();
  ASSERT_TRUE(windows_->Unmap(0, kNumPlaces).ok());
  ASSERT_TRUE(windows_->Map(0, 6, 1).ok());

  EXPECT_EQ(Shown(0, 1), "g");
}

TEST_F(HostWindowsDeathTest, APlaceThatShowsNothingMustNotBeRead) {
  ASSERT_TRUE(windows_->Map(4, 1, 1).ok());

  EXPECT_EXIT(*Place(3), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(*Place(5), testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(HostWindowsDeathTest, APlaceThatWasUnmappedMustNotBeRead) {
  FillPool();
  ASSERT_TRUE(windows_->Map(2, 1, 3).ok());

  ASSERT_TRUE(windows_->Unmap(3, 1).ok());

  EXPECT_EQ(Shown(2, 1) + Shown(4, 1), "bd");
  EXPECT_EXIT(*Place(3), testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(HostWindowsDeathTest, APlaceMustNotBeWritten) {
  ASSERT_TRUE(windows_->Map(4, 1, 1).ok());

  EXPECT_EXIT(*Place(4) = 'x', testing::KilledBySignal(SIGSEGV), "");
}

TEST(HostWindowsMemoryTest, SizesThatCannotBeAreRefused) {
  const int64_t page = HostPageBytes();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t most_blocks = kMost / page;
  for (const WindowShape& shape : std::vector<WindowShape>{
           {.block_bytes = page, .num_blocks = kMost, .num_places = 1},  // overflows
           {.block_bytes = page, .num_blocks = 1, .num_places = kMost},
           {.block_bytes = page, .num_blocks = most_blocks, .num_places = 1},  // no such addresses
           {.block_bytes = page, .num_blocks = 1, .num_places = most_blocks}}) {
    const absl::Status status = MakeHostWindows(shape).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ReasonOf(status), "MEMORY");
  }
}

TEST(HostWindowsMemoryTest, EverythingIsGivenBack) {
  const int64_t num_files = NumOpenFiles();
  const int64_t page = HostPageBytes();
  auto windows = MakeHostWindows({.block_bytes = page, .num_blocks = 9, .num_places = 9});
  ASSERT_TRUE(windows.ok()) << windows.status();
  ASSERT_TRUE((*windows)->Map(0, 3, 1).ok());
  ASSERT_TRUE((*windows)->Map(2, 5, 2).ok());
  ASSERT_EQ(NumOpenFiles(), num_files + 1);
  ASSERT_EQ(NumMappingsOfPools(), 3);

  windows->reset();

  EXPECT_EQ(NumOpenFiles(), num_files);
  EXPECT_EQ(NumMappingsOfPools(), 0);
}

TEST(HostWindowsMemoryTest, ARefusalKeepsNothing) {
  const int64_t num_files = NumOpenFiles();
  const int64_t page = HostPageBytes();
  const int64_t too_many = std::numeric_limits<int64_t>::max() / page;

  ASSERT_FALSE(
      MakeHostWindows({.block_bytes = page, .num_blocks = 1, .num_places = too_many}).ok());

  EXPECT_EQ(NumOpenFiles(), num_files);
  EXPECT_EQ(NumMappingsOfPools(), 0);
}

}  // namespace
}  // namespace quire
