#include "deploy/cli/top_command.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/deploy/ran_command.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

TEST(TopCommandTest, ReadsItsFlags) {
  const auto options = ParseTopArguments({"--admin", "unix:/a", "--interval=0.5", "--once"});

  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->admin, "unix:/a");
  EXPECT_EQ(options->interval_seconds, 0.5);
  EXPECT_TRUE(options->once);
  EXPECT_FALSE(ParseTopArguments({"--admin", "a:1"})->once);
}

TEST(TopCommandTest, RefusesWhatItDoesNotKnowOrMisses) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"--once"},
      {"--admin", "a:1", "--interval", "0.1"},
      {"--admin", "a:1", "--interval", "nan"},
      {"--admin", "a:1", "--interval", "inf"},
      {"--admin", "a:1", "--twice"},
  };
  for (const std::vector<std::string>& args : cases) {
    EXPECT_FALSE(ParseTopArguments(args).ok()) << testing::PrintToString(args);
  }
}

TEST(TopCommandTest, SaysWhenNobodyAnswers) {
  const RanCommand ran = Capture(RunTop, {"--admin", "unix:/no/such/socket", "--once"});

  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("quire: top: UNAVAILABLE"));
  EXPECT_EQ(ran.out, "");
}

}  // namespace
}  // namespace quire
