#include "worker/model/load_progress.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/capture_log.h"

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

TEST(FormatLoadProgressTest, ShowsShareCountsTimesAndSpeed) {
  EXPECT_EQ(FormatLoadProgress(kHalf, 2.0),
            "Loading weights:  50% Completed | 73/146 tensors, 254/508 MB [00:02<00:02,"
            " 127 MB/s]");
  EXPECT_EQ(FormatLoadProgress(kDone, 61.0),
            "Loading weights: 100% Completed | 146/146 tensors, 508/508 MB [01:01<00:00,"
            " 8 MB/s]");
}

TEST(FormatLoadProgressTest, AnEmptyModelAndTheFirstMomentDivideByNothing) {
  EXPECT_EQ(FormatLoadProgress({}, 0.0),
            "Loading weights: 100% Completed | 0/0 tensors, 0/0 MB [00:00<00:00, 0 MB/s]");
  EXPECT_EQ(FormatLoadProgress({.tensors_total = 3, .bytes_total = 1'000'000}, 0.0),
            "Loading weights:   0% Completed | 0/3 tensors, 0/1 MB [00:00<00:00, 0 MB/s]");
}

TEST(LoadProgressBarTest, OffATerminalItLogsALineAtEveryQuarterAndAtTheEnd) {
  CaptureStderr();
  LoadProgressBar bar;

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

  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, testing::MatchesRegex("[-0-9T:.]+Z INFO Loading weights:  25%.*\n"));
  EXPECT_THAT(text, testing::HasSubstr(" 25% Completed | 25/100"));
  EXPECT_THAT(text, testing::HasSubstr(" 50% Completed | 50/100"));
  EXPECT_THAT(text, testing::HasSubstr(" 75% Completed | 75/100"));
  EXPECT_THAT(text, testing::HasSubstr("100% Completed | 100/100"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

}  // namespace
}  // namespace quire
