#include "common/base/lossy_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/check.h"
#include "common/base/file_descriptor.h"

#include <sys/resource.h>
#include <sys/stat.h>

namespace quire {
namespace {

constexpr int kLongMillis = 10'000;

// Reads until `is_all` is true of the text, or until nothing has come for timeout_ms.
template <typename IsAll>
std::string ReadUntil(int fd, IsAll is_all, int timeout_ms = kLongMillis) {
  std::string text;
  std::array<char, 4'096> chunk = {};
  pollfd readable = {.fd = fd, .events = POLLIN, .revents = 0};
  while (!is_all(text) && ::poll(&readable, 1, timeout_ms) == 1) {
    const ssize_t size = ::read(fd, chunk.data(), chunk.size());
    if (size <= 0) {
      break;
    }
    // A terminal puts a carriage return before each end of a line.
    std::copy_if(chunk.begin(), chunk.begin() + size, std::back_inserter(text), [](char c) {
      return c != '\r';
    });
  }
  return text;
}

std::string ReadSize(int fd, size_t size) {
  return ReadUntil(fd, [size](const std::string& text) { return text.size() >= size; });
}

// Reads the output that is there, without waiting.
std::string ReadRest(int fd) {
  return ReadUntil(
      fd, [](const std::string& /*text*/) { return false; }, /*timeout_ms=*/0);
}

// A pty whose other end is the caller's to read.
struct Pty {
  Pty() : reader(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(::grantpt(reader.fd()), 0);
    EXPECT_EQ(::unlockpt(reader.fd()), 0);
    std::array<char, 64> name = {};
    EXPECT_EQ(::ptsname_r(reader.fd(), name.data(), name.size()), 0);
    terminal = FileDescriptor(::open(name.data(), O_RDWR | O_NOCTTY));
  }

  FileDescriptor reader;
  FileDescriptor terminal;
};

struct Pipe {
  Pipe() {
    std::array<int, 2> ends = {-1, -1};
    EXPECT_EQ(::pipe(ends.data()), 0);
    reader = FileDescriptor(ends[0]);
    writer = FileDescriptor(ends[1]);
  }

  FileDescriptor reader;
  FileDescriptor writer;
};

std::string Line(int number, size_t size) {
  std::string line = std::to_string(number) + " ";
  line.resize(size - 1, 'x');
  return line + "\n";
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  return lines;
}

// The number that a line begins with.
int NumberOf(const std::string& line) { return std::atoi(line.c_str()); }

// Expects the lines to be numbered from 0 without a gap.
void ExpectLines(const std::vector<std::string>& lines, size_t num_lines) {
  EXPECT_EQ(lines.size(), num_lines);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(NumberOf(lines[i]), static_cast<int>(i));
  }
}

// All lines of a writer whose backlog is full, up to one that is written when there is room again.
// `text` was read before.
std::vector<std::string> LinesBeforeLater(LossyWriter& writer, int fd, std::string text = "") {
  text += ReadSize(fd, LossyWriter::kMaxBacklogBytes / 2);
  writer.Write("later\n");
  text += ReadUntil(fd, [](const std::string& rest) { return rest.ends_with("later\n"); });
  std::vector<std::string> lines = LinesOf(text);
  EXPECT_EQ(lines.back(), "later");
  lines.pop_back();
  return lines;
}

TEST(LossyWriterTest, ATerminalThatNobodyReadsKeepsNobodyWaiting) {
  const Pty pty;
  LossyWriter& writer = *new LossyWriter(pty.terminal.fd());
  static constexpr std::array<size_t, 4> kSizes = {80, 200, 500, 1'000};
  const auto line = [](int number) {
    return Line(number, kSizes[static_cast<size_t>(number) % kSizes.size()]);
  };
  // Twice what terminal and backlog take: a writer that waits does not come to an end here.
  constexpr int kNumLines = 5'000;
  for (int number = 0; number < kNumLines; ++number) {
    writer.Write(line(number));
  }

  const std::vector<std::string> lines = LinesBeforeLater(writer, pty.reader.fd());
  EXPECT_LT(lines.size(), kNumLines);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i] + "\n", line(NumberOf(lines[i])));
    EXPECT_TRUE(i == 0 || NumberOf(lines[i]) > NumberOf(lines[i - 1]));
  }
}

// Again and again there is room for the text of one of them.
TEST(LossyWriterTest, TwoThreadsOnAFullPipeDoNotWait) {
  constexpr size_t kSize = LossyWriter::kMaxTextBytes;
  const Pipe pipe;
  ASSERT_GT(::fcntl(pipe.writer.fd(), F_SETPIPE_SZ, static_cast<int>(kSize)), 0);
  LossyWriter& writer = *new LossyWriter(pipe.writer.fd());
  std::atomic<bool> is_over{false};
  const auto write = [&writer, &is_over] {
    while (!is_over) {
      writer.Write(Line(0, kSize));
    }
  };
  std::thread one(write);
  std::thread other(write);
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += ReadSize(pipe.reader.fd(), 1);
  }
  is_over = true;
  one.join();
  other.join();

  for (const std::string& line : LinesBeforeLater(writer, pipe.reader.fd(), text)) {
    EXPECT_EQ(line.size(), kSize - 1);
  }
}

TEST(LossyWriterTest, ALinePassesWhereAnotherProcessMadeThePipeNonBlocking) {
  const Pipe pipe;
  ASSERT_EQ(::fcntl(pipe.writer.fd(), F_SETFL, O_NONBLOCK), 0);
  LossyWriter& writer = *new LossyWriter(pipe.writer.fd());
  for (int i = 0; i < 1'000; ++i) {
    writer.Write(Line(i, 1'000));
  }

  ExpectLines(LinesOf(ReadSize(pipe.reader.fd(), 1'000'000)), 1'000);
}

TEST(LossyWriterTest, LongTextIsCutAndStillEndsItsLine) {
  const Pipe pipe;
  LossyWriter& writer = *new LossyWriter(pipe.writer.fd());

  writer.Write(std::string(LossyWriter::kMaxTextBytes + 100, 'x') + "\n");
  writer.Write("next\n");
  writer.Flush();

  EXPECT_EQ(ReadRest(pipe.reader.fd()),
            std::string(LossyWriter::kMaxTextBytes - 1, 'x') + "\nnext\n");
}

// A file that may not grow refuses the rest of a text as a full disk does, and SIGXFSZ would end
// the process in any thread of it that does not block it.
TEST(LossyWriterTest, TheTextAfterATornOneBeginsOnItsOwnLine) {
  const std::string path = testing::TempDir() + "lossy_writer_test.log";
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, S_IRWXU));
  LossyWriter& writer = *new LossyWriter(file.fd());
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit lower = {.rlim_cur = 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  writer.Write(Line(0, 150));
  writer.Write("lost\n");
  writer.Flush();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);

  writer.Write("next\n");
  writer.Flush();

  std::string text(1'000, '\0');
  text.resize(static_cast<size_t>(::pread(file.fd(), text.data(), text.size(), 0)));
  EXPECT_EQ(text, Line(0, 150).substr(0, 100) + "\nnext\n");
  ::unlink(path.c_str());
}

TEST(LossyWriterTest, ADescriptorThatIsClosedOrHasNoReaderIsNoError) {
  Pipe pipe;
  pipe.reader = FileDescriptor();
  for (const int fd : {-1, pipe.writer.fd()}) {
    LossyWriter& writer = *new LossyWriter(fd);
    writer.Write("nobody\n");
    writer.Flush();
  }
}

class LossyWriterDeathTest : public testing::Test {
 protected:
  // Runs in a death test's process. Makes fd its standard error and logs 100 lines to it.
  static void BecomeLoggerOf(int fd) {
    ::dup2(fd, STDERR_FILENO);
    for (int i = 0; i < 100; ++i) {
      StandardError().Write(Line(i, 100));
    }
  }

  static void ExpectAllLines(int fd) { ExpectLines(LinesOf(ReadRest(fd)), 100); }

  const Pipe pipe_;
};

TEST_F(LossyWriterDeathTest, ExitWritesTheLastLines) {
  EXPECT_EXIT((BecomeLoggerOf(pipe_.writer.fd()), std::exit(3)), testing::ExitedWithCode(3), "");
  ExpectAllLines(pipe_.reader.fd());
}

TEST_F(LossyWriterDeathTest, ExitNowWritesTheLastLines) {
  EXPECT_EXIT((BecomeLoggerOf(pipe_.writer.fd()), ExitNow(3)), testing::ExitedWithCode(3), "");
  ExpectAllLines(pipe_.reader.fd());
}

TEST_F(LossyWriterDeathTest, ACrashWritesTheLastLines) {
  EXPECT_EXIT(
      (BecomeLoggerOf(pipe_.writer.fd()), std::abort()), testing::KilledBySignal(SIGABRT), "");
  ExpectAllLines(pipe_.reader.fd());
}

// Throws what std::thread throws where a limit keeps it from starting.
void StartThreadPastLimit() {
  throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
}

TEST_F(LossyWriterDeathTest, AThreadThatCannotStartIsAMistakeOfTheSettings) {
  const auto run = []() noexcept { StartThreadPastLimit(); };
  EXPECT_EXIT((BecomeLoggerOf(pipe_.writer.fd()), run()), testing::ExitedWithCode(2), "");
  EXPECT_THAT(ReadRest(pipe_.reader.fd()), testing::HasSubstr("cannot start a thread: a limit"));
}

TEST_F(LossyWriterDeathTest, ATerminalThatNobodyReadsKeepsNoProcessAlive) {
  const Pty pty;
  const auto fill = [&pty] {
    ::dup2(pty.terminal.fd(), STDERR_FILENO);
    for (int i = 0; i < 2'000; ++i) {
      StandardError().Write(Line(i, 100));
    }
  };
  EXPECT_EXIT((fill(), std::exit(3)), testing::ExitedWithCode(3), "");
  EXPECT_EXIT((fill(), std::abort()), testing::KilledBySignal(SIGABRT), "");
  EXPECT_EXIT(
      {
        fill();
        QUIRE_CHECK(false);
      },
      testing::KilledBySignal(SIGALRM),
      "");
}

}  // namespace
}  // namespace quire
