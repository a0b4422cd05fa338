#include "kernels/collective/shared_channel.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

namespace quire {
namespace {

using Side = SharedChannel::Side;
using Waited = SharedChannel::Waited;

int64_t SizeOf(const FileDescriptor& file) {
  struct stat status = {};
  EXPECT_EQ(::fstat(file.fd(), &status), 0);
  return status.st_size;
}

FileDescriptor MemoryFile(int64_t bytes, int seals) {
  FileDescriptor file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.fd(), bytes), 0);
  EXPECT_EQ(::fcntl(file.fd(), F_ADD_SEALS, seals), 0);
  return file;
}

TEST(SharedChannelTest, NobodyCanCutOffWhatIsMapped) {
  const FileDescriptor memory = SharedChannel::CreateMemory();
  ASSERT_TRUE(memory.is_open());
  EXPECT_NE(::ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(::ftruncate(memory.fd(), 2 * SizeOf(memory)), 0);
}

TEST(SharedChannelTest, OnlySealedMemoryOfTheRightSizeIsTaken) {
  const int64_t size = SizeOf(SharedChannel::CreateMemory());
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const auto is_taken = [](const FileDescriptor& file) {
    return SharedChannel::Map(file, Side::kOther, false) != nullptr;
  };
  EXPECT_TRUE(is_taken(MemoryFile(size, kSeals)));
  EXPECT_FALSE(is_taken(MemoryFile(size, F_SEAL_GROW)));
  EXPECT_FALSE(is_taken(MemoryFile(size, F_SEAL_SHRINK)));
  EXPECT_FALSE(is_taken(MemoryFile(size - 1, kSeals)));
  EXPECT_FALSE(is_taken(MemoryFile(size + 1, kSeals)));
  EXPECT_FALSE(is_taken(MemoryFile(size, kSeals | F_SEAL_WRITE)));
  EXPECT_FALSE(is_taken(FileDescriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC))));
  EXPECT_FALSE(is_taken(FileDescriptor()));
}

class TwoSidesTest : public testing::TestWithParam<bool> {
 protected:
  const FileDescriptor memory_ = SharedChannel::CreateMemory();
  const std::unique_ptr<SharedChannel> a_ = SharedChannel::Map(memory_, Side::kCreator, GetParam());
  const std::unique_ptr<SharedChannel> b_ = SharedChannel::Map(memory_, Side::kOther, GetParam());
};

TEST_P(TwoSidesTest, WaitEndsWhenNothingComes) {
  EXPECT_EQ(a_->Wait(/*wants_data=*/true, /*wants_room=*/false), Waited::kNothing);
}

TEST_P(TwoSidesTest, WhatIsThereIsNotWaitedFor) {
  const std::vector<std::byte> bytes(10);
  ASSERT_EQ(b_->Send(bytes), bytes.size());
  EXPECT_EQ(a_->Wait(true, false), Waited::kSomething);
  EXPECT_EQ(a_->Wait(false, true), Waited::kSomething);
}

TEST_P(TwoSidesTest, EachSideSeesTheOthersEnd) {
  EXPECT_FALSE(a_->is_closed() || a_->is_closed_by_other());
  b_->Close();
  EXPECT_TRUE(b_->is_closed());
  EXPECT_FALSE(a_->is_closed());
  EXPECT_TRUE(a_->is_closed_by_other());
  EXPECT_EQ(a_->Wait(true, false), Waited::kSomething);
}

INSTANTIATE_TEST_SUITE_P(Waits, TwoSidesTest, testing::Bool(), [](const auto& param_info) {
  return param_info.param ? "Spinning" : "Sleeping";
});

constexpr uint32_t kForData = 1;
constexpr uint32_t kForRoom = 2;

// A side that sleeps for ever, unless it is woken: its words, and not Wait, which looks up now and
// then.
class SleeperTest : public testing::Test {
 public:
  ~SleeperTest() override { ::munmap(words_, kWordsBytes); }

 protected:
  // Whether `act` wakes the side, which sleeps for `reason`.
  bool Wakes(Side side, uint32_t reason, const std::function<void()>& act) {
    std::atomic<uint32_t>* word =
        words_ + (side == Side::kCreator ? 0 : kRingLineBytes / sizeof(uint32_t));
    *word = reason;
    bool is_woken = false;
    std::thread sleeper([&] {
      constexpr timespec kLong = {.tv_sec = 20, .tv_nsec = 0};
      is_woken = ::syscall(SYS_futex, word, FUTEX_WAIT, reason, &kLong, nullptr, 0) == 0 ||
                 errno == EAGAIN;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    act();
    const bool is_cleared = *word == 0;
    if (!is_cleared) {
      ::syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
    sleeper.join();
    return is_cleared && is_woken;
  }

  static constexpr size_t kWordsBytes = 2 * kRingLineBytes;
  const FileDescriptor memory_ = SharedChannel::CreateMemory();
  const std::unique_ptr<SharedChannel> a_ = SharedChannel::Map(memory_, Side::kCreator, false);
  const std::unique_ptr<SharedChannel> b_ = SharedChannel::Map(memory_, Side::kOther, false);
  std::atomic<uint32_t>* const words_ = static_cast<std::atomic<uint32_t>*>(
      ::mmap(nullptr, kWordsBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.fd(), 0));
};

TEST_F(SleeperTest, IsWokenByWhatItWaitsFor) {
  const std::vector<std::byte> bytes(kRingLineBytes);
  ASSERT_EQ(a_->Send(bytes), bytes.size());
  EXPECT_TRUE(Wakes(Side::kCreator, kForData, [&] { b_->Send(bytes); }));
  EXPECT_TRUE(
      Wakes(Side::kCreator, kForRoom, [&] { b_->Release(b_->Peek(bytes.size())->size()); }));
  EXPECT_TRUE(Wakes(Side::kCreator, kForData | kForRoom, [&] { b_->Send(bytes); }));
  EXPECT_FALSE(Wakes(Side::kCreator, kForRoom, [&] { b_->Send(bytes); }));
}

TEST_F(SleeperTest, IsWokenByTheEndOfEitherSide) {
  for (const Side side : {Side::kCreator, Side::kOther}) {
    EXPECT_TRUE(Wakes(side, kForRoom, [&] { b_->Close(); }));
    EXPECT_TRUE(Wakes(side, kForData, [&] { a_->Close(); }));
  }
}

}  // namespace
}  // namespace quire
