#include "worker/model/load_progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr LoadProgress kHalf = {.tensors_done = 73,
                                .tensors_total = 146,
                                .bytes_done = 254'000'000,
                                .bytes_total = 508'000'000};
constexpr LoadProgress kDone = {.tensors_done = 146,
                                .tensors_total = 146,
                                .bytes_done = 508'000'000,
                                .bytes_total = 508'000'000};

// What a bar writes to something that is no terminal.
class LoadProgressBarTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe(ends_.data()), 0); }
  void TearDown() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  int fd() const { return ends_[1]; }

  std::string Written() {
    std::string text(4096, '\0');
    EXPECT_EQ(::write(ends_[1], "|", 1), 1);  // so that the read does not wait
    const ssize_t n = ::read(ends_[0], text.data(), text.size());
    text.resize(static_cast<size_t>(n > 0 ? n - 1 : 0));
    return text;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

TEST(FormatLoadProgressTest, ShowsShareCountsTimesAndSpeed) {
  EXPECT_EQ(FormatLoadProgress(kHalf, 2.0),
            "Loading safetensors:  50% Completed | 73/146 tensors, 254/508 MB [00:02<00:02,"
            " 127 MB/s]");
  EXPECT_EQ(FormatLoadProgress(kDone, 61.0),
            "Loading safetensors: 100% Completed | 146/146 tensors, 508/508 MB [01:01<00:00,"
            " 8 MB/s]");
}

TEST(FormatLoadProgressTest, AnEmptyModelAndTheFirstMomentDivideByNothing) {
  EXPECT_EQ(FormatLoadProgress({}, 0.0),
            "Loading safetensors: 100% Completed | 0/0 tensors, 0/0 MB [00:00<00:00, 0 MB/s]");
  EXPECT_EQ(FormatLoadProgress({.tensors_total = 3, .bytes_total = 1'000'000}, 0.0),
            "Loading safetensors:   0% Completed | 0/3 tensors, 0/1 MB [00:00<00:00, 0 MB/s]");
}

TEST_F(LoadProgressBarTest, OffATerminalItWritesALineAtEveryQuarterAndAtTheEnd) {
  LoadProgressBar bar(fd());

  for (int64_t done = 1; done <= 100; ++done) {
    bar.Update({.tensors_done = done,
                .tensors_total = 100,
                .bytes_done = done * 1'000'000,
                .bytes_total = 100'000'000});
  }
  bar.Update({.tensors_done = 100,
              .tensors_total = 100,
              .bytes_done = 100'000'000,
              .bytes_total = 100'000'000});

  const std::string text = Written();
  EXPECT_THAT(text, testing::HasSubstr(" 25% Completed | 25/100"));
  EXPECT_THAT(text, testing::HasSubstr(" 50% Completed | 50/100"));
  EXPECT_THAT(text, testing::HasSubstr(" 75% Completed | 75/100"));
  EXPECT_THAT(text, testing::HasSubstr("100% Completed | 100/100"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST_F(LoadProgressBarTest, ABrokenPipeIsIgnored) {
  LoadProgressBar bar(-1);

  bar.Update(kHalf);
  bar.Update(kDone);

  EXPECT_EQ(Written(), "");
}

}  // namespace
}  // namespace quire
