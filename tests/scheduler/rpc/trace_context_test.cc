#include "scheduler/rpc/trace_context.h"

#include <string>

#include "gtest/gtest.h"

namespace quire {
namespace {

// The example of the recommendation.
constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

std::string Header(const std::string& version,
                   const std::string& trace_id,
                   const std::string& parent_id,
                   const std::string& rest) {
  return version + "-" + trace_id + "-" + parent_id + "-" + rest;
}

TEST(TraceContextTest, ReadsTheIds) {
  for (const char* version_0_flags : {"01", "fe"}) {
    EXPECT_TRUE(ParseTraceParent(Header("00", kTraceId, kParentId, version_0_flags)).has_value());
  }
  for (const std::string& header : {Header("00", kTraceId, kParentId, "01"),
                                    Header("cc", kTraceId, kParentId, "01"),
                                    Header("cc", kTraceId, kParentId, "01-of the future")}) {
    const auto trace = ParseTraceParent(header);
    ASSERT_TRUE(trace.has_value()) << header;
    EXPECT_EQ(trace->trace_id, kTraceId);
    EXPECT_EQ(trace->parent_id, kParentId);
  }
}

TEST(TraceContextTest, IgnoresWhatIsNotAsTheRecommendationHasIt) {
  const std::string good = Header("00", kTraceId, kParentId, "01");
  const std::string zeros(32, '0');
  for (const std::string& header : {std::string(),
                                    good.substr(0, good.size() - 1),
                                    good + "-more",
                                    good + "1",
                                    Header("cc", kTraceId, kParentId, "01more"),
                                    Header("ff", kTraceId, kParentId, "01"),
                                    Header("0x", kTraceId, kParentId, "01"),
                                    Header("00", zeros, kParentId, "01"),
                                    Header("00", kTraceId, zeros.substr(0, 16), "01"),
                                    Header("00", kTraceId, kParentId, "0g"),
                                    Header("00", std::string(32, 'A'), kParentId, "01"),
                                    Header("00", std::string(31, 'a') + "\n", kParentId, "01"),
                                    Header("00", kTraceId, "00f067aa0ba902b\"", "01"),
                                    std::string(good).replace(2, 1, "_"),
                                    std::string(good).replace(35, 1, "_"),
                                    std::string(good).replace(52, 1, "_")}) {
    EXPECT_FALSE(ParseTraceParent(header).has_value()) << header;
  }
}

}  // namespace
}  // namespace quire
