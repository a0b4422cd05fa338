#include "scheduler/step_log/step_log_file.h"

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/support/capture_log.h"

#include <sys/resource.h>
#include <sys/stat.h>

namespace quire {
namespace {

std::string ContentsOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class StepLogFileTest : public testing::Test {
 public:
  StepLogFileTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("step_log_file_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~StepLogFileTest() override { std::filesystem::remove_all(folder_); }

 protected:
  const std::filesystem::path folder_;
  const std::string path_ = folder_ / "log";
};

TEST_F(StepLogFileTest, WritesEverythingBeforeItCloses) {
  std::string expected;
  {
    StepLogFile file(path_);
    ASSERT_TRUE(file.Open().ok());
    for (int i = 0; i < 10'000; ++i) {
      const std::string bytes = std::to_string(i) + "\n";
      file.Write(bytes);
      expected += bytes;
    }
  }

  EXPECT_EQ(ContentsOf(path_), expected);
}

// A second start of the same command must not take the log of the first one.
TEST_F(StepLogFileTest, NothingIsTouchedBeforeItIsOpenedAndNothingIsLost) {
  std::ofstream(path_) << "of before";
  {
    StepLogFile(path_).Write("of one that never came to open it");
    StepLogFile file(path_);
    file.Write("early ");
    EXPECT_EQ(ContentsOf(path_), "of before");

    ASSERT_TRUE(file.Open().ok());
    file.Write("late");
  }

  EXPECT_EQ(ContentsOf(path_), "early late");
  EXPECT_EQ(ContentsOf(path_ + ".previous"), "of before");
}

TEST_F(StepLogFileTest, OnlyTheOwnerMayReadIt) {
  ASSERT_TRUE(StepLogFile(path_).Open().ok());

  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(StepLogFileTest, TheLogOfTheProcessBeforeIsKept) {
  for (const char* text : {"first", "second", "third"}) {
    StepLogFile file(path_);
    ASSERT_TRUE(file.Open().ok());
    file.Write(text);
  }

  EXPECT_EQ(ContentsOf(path_), "third");
  EXPECT_EQ(ContentsOf(path_ + ".previous"), "second");
}

TEST_F(StepLogFileTest, AFolderThatIsMissingIsAnError) {
  const absl::Status status = StepLogFile(folder_ / "none" / "log").Open();

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "STEP_LOG");
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--step-log: cannot create"));
}

// A pipe without a reader would hold up the start, and a device has no end.
TEST_F(StepLogFileTest, WhatIsNoRegularFileIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(folder_ / "folder");
  std::filesystem::create_symlink("/dev/full", folder_ / "link");

  for (const std::filesystem::path& path : {folder_ / "pipe",
                                            folder_ / "folder",
                                            folder_ / "link",
                                            std::filesystem::path("/dev/full")}) {
    const absl::Status status = StepLogFile(path).Open();

    EXPECT_EQ(ReasonOf(status), "STEP_LOG") << path;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("--step-log: must be a regular file: "))
        << path;
  }
}

// Bounds the size of files that this process writes, for as long as it lives.
class LowerFileSize {
 public:
  explicit LowerFileSize(rlim_t bytes) : signal_before_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lower = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~LowerFileSize() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_before_);
  }

 private:
  rlimit before_ = {};
  void (*signal_before_)(int);
};

// A file that may not grow refuses a write as a full disk does.
TEST_F(StepLogFileTest, AFullDiskEndsTheLogAndNothingElse) {
  CaptureStderr();
  {
    const LowerFileSize lower(1000);
    StepLogFile file(path_);
    ASSERT_TRUE(file.Open().ok());
    for (int i = 0; i < 1000; ++i) {
      file.Write("record");
    }
  }

  const std::string log = GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("step log ended early"));
  EXPECT_THAT(log, testing::HasSubstr("File too large"));
  EXPECT_EQ(log.find("step log ended early"), log.rfind("step log ended early"));
}

// Before it is opened nothing is written, as by a disk that stands still.
TEST_F(StepLogFileTest, ADiskThatFallsBehindEndsTheLogBetweenTwoWrites) {
  const std::string record(1000, 'r');
  CaptureStderr();
  auto file = std::make_unique<StepLogFile>(path_, /*buffer_bytes=*/100'500);
  for (int i = 0; i < 1000; ++i) {
    file->Write(record);
  }

  ASSERT_TRUE(file->Open().ok());
  file.reset();

  EXPECT_THAT(GetCapturedStderr(), testing::HasSubstr("too slow"));
  EXPECT_EQ(ContentsOf(path_).size(), 100'000U);
}

}  // namespace
}  // namespace quire
