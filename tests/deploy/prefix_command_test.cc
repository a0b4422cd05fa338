#include "deploy/cli/prefix_command.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(PrefixCommandTest, ReadsEachAction) {
  const auto pin = ParsePrefixArguments({"pin",
                                         "--admin",
                                         "unix:/a",
                                         "--prompt-token-ids",
                                         "4,5",
                                         "--cache-salt=s",
                                         "--no-special-tokens"});
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(pin->admin, "unix:/a");
  EXPECT_EQ(pin->pin.token_ids().ids_size(), 2);
  EXPECT_EQ(pin->pin.cache_salt(), "s");
  EXPECT_TRUE(pin->pin.has_add_special_tokens() && !pin->pin.add_special_tokens());
  EXPECT_FALSE(pin->pin.has_text());

  EXPECT_EQ(ParsePrefixArguments({"list", "--admin", "a:1"})->action, PrefixOptions::Action::kList);
  EXPECT_EQ(ParsePrefixArguments({"unpin", "--admin", "a:1", "--id", "7"})->unpin_id, 7U);
}

TEST(PrefixCommandTest, RefusesWhatItDoesNotKnowOrMisses) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"drop"},
      {"list"},
      {"pin", "--admin", "a:1"},
      {"unpin", "--admin", "a:1"},
      {"unpin", "--admin", "a:1", "--id", "x"},
      {"list", "--admin", "a:1", "--prompt", "x"},
  };
  for (const std::vector<std::string>& args : cases) {
    EXPECT_FALSE(ParsePrefixArguments(args).ok()) << testing::PrintToString(args);
  }
}

}  // namespace
}  // namespace quire
