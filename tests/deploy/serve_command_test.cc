#include "deploy/cli/serve_command.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

using Words = std::vector<std::string>;

TEST(ServeCommandTest, EachFlagGoesToTheProgramThatKnowsIt) {
  auto split = SplitServeArguments({"--model",
                                    "DIR",
                                    "--port=0",
                                    "--threads",
                                    "2",
                                    "--kv_cache_memory_bytes=9",
                                    "--max-num-seqs",
                                    "8"});

  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR", "--port=0", "--max-num-seqs", "8"}));
  EXPECT_EQ(split->worker,
            (Words{"--model", "DIR", "--threads", "2", "--kv_cache_memory_bytes=9"}));
}

TEST(ServeCommandTest, TheModelMayBeTheFirstWord) {
  auto split = SplitServeArguments({"DIR"});

  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->worker, (Words{"--model", "DIR"}));
  EXPECT_EQ(split->scheduler, (Words{"--model", "DIR"}));
}

TEST(ServeCommandTest, AModelIsNeededAndStrayWordsAreRefused) {
  EXPECT_FALSE(SplitServeArguments({"--port=0"}).ok());
  EXPECT_FALSE(SplitServeArguments({"--model=DIR", "--port=0", "stray"}).ok());
}

}  // namespace
}  // namespace quire
