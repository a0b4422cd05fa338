#include "scheduler/step_log/step_log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

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
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--step-log: cannot make"));
}

// /dev/full refuses every write as a full disk does.
TEST_F(StepLogFileTest, AFullDiskEndsTheLogAndNothingElse) {
  testing::internal::CaptureStderr();
  {
    StepLogFile file("/dev/full");
    ASSERT_TRUE(file.Open().ok());
    for (int i = 0; i < 1000; ++i) {
      file.Write("record");
    }
  }

  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("step log ends"));
  EXPECT_THAT(log, testing::HasSubstr("No space left"));
  EXPECT_EQ(log.find("step log ends"), log.rfind("step log ends"));
}

// A pipe that nobody reads takes 64 KiB and then blocks its writer.
TEST_F(StepLogFileTest, ADiskThatFallsBehindEndsTheLogBetweenTwoWrites) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  const std::string record(1000, 'r');
  testing::internal::CaptureStderr();
  auto file = std::make_unique<StepLogFile>(path_, /*buffer_bytes=*/100'500);
  ASSERT_TRUE(file->Open().ok());

  for (int i = 0; i < 1000; ++i) {
    file->Write(record);  // returns at once, or the test ends here
  }
  ASSERT_EQ(::fcntl(reader, F_SETFL, 0), 0);
  std::string written;
  std::thread drain([&] {
    char buffer[4096];
    for (ssize_t size = 0; (size = ::read(reader, buffer, sizeof buffer)) > 0;) {
      written.append(buffer, static_cast<size_t>(size));
    }
  });
  file.reset();
  drain.join();
  ::close(reader);

  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("too slow"));
  EXPECT_EQ(written.size() % record.size(), 0U);
  EXPECT_GE(written.size(), 100'000U);
  EXPECT_LT(written.size(), 1'000'000U);
}

}  // namespace
}  // namespace quire
