#include "worker/kv_cache/available_memory.h"

#include <optional>

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(AvailableMemoryTest, ReadsTheLineOfMeminfo) {
  constexpr char kText[] = "MemTotal:  100 kB\nMemAvailable:   24 kB\nBuffers: 7 kB\n";

  EXPECT_EQ(ParseMeminfo(kText, "MemAvailable"), 24 * 1024);
  EXPECT_EQ(ParseMeminfo(kText, "MemTotal"), 100 * 1024);
  EXPECT_EQ(ParseMeminfo(kText, "Mem"), std::nullopt);
}

TEST(AvailableMemoryTest, SaysNothingOfAMeminfoThatSaysNothing) {
  for (const char* text : {"",
                           "MemTotal: 100 kB\n",
                           "MemAvailable: many kB\n",
                           "MemAvailable: -1 kB\n",
                           "MemAvailable: 9223372036854775807 kB\n"}) {
    EXPECT_EQ(ParseMeminfo(text, "MemAvailable"), std::nullopt) << text;
  }
}

TEST(AvailableMemoryTest, AControlGroupLeavesWhatItDoesNotUse) {
  EXPECT_EQ(ParseCgroupHeadroom("1000\n", "400\n"), 600);
  EXPECT_EQ(ParseCgroupHeadroom("1000\n", "1400\n"), 0);
  EXPECT_EQ(ParseCgroupHeadroom("max\n", "400\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupHeadroom("", ""), std::nullopt);
}

TEST(AvailableMemoryTest, ThisMachineHasSomeAndMoreInAll) {
  EXPECT_GT(AvailableMemoryBytes().value_or(1), 0);
  EXPECT_GT(TotalMemoryBytes().value_or(2), AvailableMemoryBytes().value_or(1));
}

}  // namespace
}  // namespace quire
