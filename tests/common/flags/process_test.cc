#include "common/flags/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(OpenStandardStreamsDeathTest, NoFileOfOursGetsTheNumberOfAClosedStream) {
  const auto next_number = [] {
    ::close(STDIN_FILENO);
    ::close(STDERR_FILENO);
    OpenStandardStreams();
    return ::open("/dev/null", O_RDONLY);
  };
  EXPECT_EXIT(std::_Exit(next_number() > STDERR_FILENO ? 3 : 4), testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace quire
