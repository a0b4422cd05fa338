#include "worker/kv_cache/available_memory.h"

#include <optional>

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(AvailableMemoryTest, ReadsTheLineOfMeminfo) {
  EXPECT_EQ(ParseMemAvailable("MemTotal:  100 kB\nMemAvailable:   24 kB\nBuffers: 7 kB\n"),
            24 * 1024);
}

TEST(AvailableMemoryTest, SaysNothingOfAMeminfoThatSaysNothing) {
  for (const char* text : {"",
                           "MemTotal: 100 kB\n",
                           "MemAvailable: many kB\n",
                           "MemAvailable: -1 kB\n",
                           "MemAvailable: 9223372036854775807 kB\n"}) {
    EXPECT_EQ(ParseMemAvailable(text), std::nullopt) << text;
  }
}

TEST(AvailableMemoryTest, AControlGroupLeavesWhatItDoesNotUse) {
  EXPECT_EQ(ParseCgroupHeadroom("1000\n", "400\n"), 600);
  EXPECT_EQ(ParseCgroupHeadroom("1000\n", "1400\n"), 0);
  EXPECT_EQ(ParseCgroupHeadroom("max\n", "400\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupHeadroom("", ""), std::nullopt);
}

TEST(AvailableMemoryTest, ThisMachineHasSome) { EXPECT_GT(AvailableMemoryBytes().value_or(1), 0); }

}  // namespace
}  // namespace quire
