#include "common/base/lossy_write.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "gtest/gtest.h"

namespace quire {
namespace {

class LossyWriteTest : public testing::Test {
 protected:
  LossyWriteTest() {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    EXPECT_GT(::fcntl(ends_[1], F_SETPIPE_SZ, static_cast<int>(kMaxLossyWriteBytes)), 0);
  }
  ~LossyWriteTest() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  std::string Read() const {
    std::string bytes(2 * kMaxLossyWriteBytes, '\0');
    const ssize_t size = ::read(ends_[0], bytes.data(), bytes.size());
    bytes.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return bytes;
  }

  std::array<int, 2> ends_ = {-1, -1};
};

TEST_F(LossyWriteTest, WhatNobodyReadsIsLostAndLaterTextArrives) {
  for (int i = 0; i < 10; ++i) {
    LossyWrite(ends_[1], std::string(kMaxLossyWriteBytes, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(Read(), std::string(kMaxLossyWriteBytes, 'a'));

  LossyWrite(ends_[1], "later\n");
  EXPECT_EQ(Read(), "later\n");
}

TEST_F(LossyWriteTest, TextThatNoPipeTakesAtOnceIsCut) {
  LossyWrite(ends_[1], std::string(kMaxLossyWriteBytes + 1, 'x'));

  EXPECT_EQ(Read().size(), kMaxLossyWriteBytes);
}

TEST_F(LossyWriteTest, ADescriptorThatIsClosedIsNoError) { LossyWrite(-1, "nobody\n"); }

}  // namespace
}  // namespace quire
