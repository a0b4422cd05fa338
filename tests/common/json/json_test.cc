#include "common/json/json.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

std::string Repeat(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

// The parser's complaint, or "" for an accepted text.
std::string Complaint(std::string_view text, const JsonLimits& limits = {}) {
  const auto json = ParseJson(text, limits);
  EXPECT_TRUE(json.ok() || ReasonOf(json.status()) == "JSON");
  return json.ok() ? "" : std::string(json.status().message());
}

TEST(JsonTest, ParsesAsTheLibraryDoes) {
  for (const char* text : {"null",
                           "true",
                           "-0",
                           "0",
                           "-5",
                           "9223372036854775807",
                           "18446744073709551615",
                           "18446744073709551616",
                           "-9223372036854775808",
                           "1e3",
                           "0.1",
                           R"("")",
                           R"("\u00e9\ud83d\ude00\n")",
                           "[]",
                           "{}",
                           R"([1,[2,[]],{"a":[{"b":null},"c"],"d":{}},false])",
                           R"({"":{"":""}," ":[{}]})"}) {
    const auto json = ParseJson(text);
    ASSERT_TRUE(json.ok()) << text;
    const Json expected = Json::parse(text);
    EXPECT_EQ(*json, expected) << text;
    EXPECT_EQ(json->type(), expected.type()) << text;
    EXPECT_EQ(json->dump(), expected.dump()) << text;
    const auto ordered = ParseOrderedJson(text);
    ASSERT_TRUE(ordered.ok()) << text;
    EXPECT_EQ(ordered->dump(), OrderedJson::parse(text).dump()) << text;
  }
}

TEST(JsonTest, OrderedJsonKeepsTheOrderOfKeysAndRefusesDuplicates) {
  const std::string text = R"({"z":1,"a":{"c":[{"y":2,"b":3}],"b":4},"m":5})";
  ASSERT_TRUE(ParseOrderedJson(text).ok());
  EXPECT_EQ(ParseOrderedJson(text)->dump(), text);
  for (const char* twice : {R"({"b":1,"a":2,"b":3})", R"([{"x":{"b":{"a":1,"\u0061":2}}}])"}) {
    EXPECT_EQ(ParseOrderedJson(twice).status().message(), "JSON: duplicate key");
  }
}

// A search for each key would compare 25 billion keys here.
TEST(JsonTest, ALongObjectInNestedObjectsIsRead) {
  std::string members;
  for (int i = 0; i < 100'000; ++i) {
    members += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
  }
  std::string text = "{" + members + "}";
  for (int level = 0; level < 4; ++level) {
    text = "{\"x\":" + text + "," + members + "}";
  }
  const auto json = ParseOrderedJson(text);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 100'001U);
}

TEST(JsonTest, FaultsAreRefusedWithTheirPlace) {
  EXPECT_EQ(Complaint(""), "JSON: not valid at byte 1");
  EXPECT_EQ(Complaint("[1,]"), "JSON: not valid at byte 4");
  EXPECT_EQ(Complaint("[NaN]"), "JSON: not valid at byte 2");
  EXPECT_EQ(Complaint("1e999"), "JSON: not valid at byte 5");
  EXPECT_EQ(Complaint("[1] 2"), "JSON: not valid at byte 5");
  EXPECT_EQ(Complaint("\"\xFF\""), "JSON: not valid at byte 2");
  EXPECT_EQ(Complaint(R"({"a":)"), "JSON: not valid at byte 6");
}

TEST(JsonTest, DuplicateKeysAreRefusedWithinOneObjectAlone) {
  EXPECT_EQ(Complaint(R"([{"a":1},{"a":{"a":1,"b":2}}])"), "");
  EXPECT_EQ(Complaint(R"({"a":1,"b":[{"a":{}}],"a":1})"), "JSON: duplicate key");
  EXPECT_EQ(Complaint(R"({"b":{"a":1,"\u0061":2}})"), "JSON: duplicate key");
}

TEST(JsonTest, ReadingEndsWhereItIsTooDeep) {
  EXPECT_EQ(Complaint("[[{}]]", {.max_depth = 3}), "");
  EXPECT_EQ(Complaint("[[[{", {.max_depth = 3}), "JSON: nested too deep");
  EXPECT_EQ(Complaint(R"({"a":{"b":{"c":[)", {.max_depth = 3}), "JSON: nested too deep");
  // The parser stops at the bracket that is too deep, so it never reads the rest, which is no JSON.
  EXPECT_EQ(Complaint(Repeat("[", 65) + "NaN"), "JSON: nested too deep");
  EXPECT_EQ(Complaint(Repeat("[", 1 << 20)), "JSON: nested too deep");
}

TEST(JsonTest, ReadingEndsAfterSoManyValues) {
  const JsonLimits limits{.max_values = 4};
  EXPECT_EQ(Complaint("[1,2,3]", limits), "");
  EXPECT_EQ(Complaint(R"({"a":"x","b":[null]})", limits), "");
  const std::string message = "JSON: has too many values (limit 4)";
  EXPECT_EQ(Complaint("[1,2,3,true NaN", limits), message);
  EXPECT_EQ(Complaint("[[],[],[],[NaN", limits), message);
  EXPECT_EQ(Complaint(R"({"a":{},"b":{},"c":{},"d":{NaN)", limits), message);
  EXPECT_EQ(Complaint(R"(["a","b","c","d"NaN)", limits), message);
}

// A parser that scans an array's other elements at each element's end would need half an hour here.
TEST(JsonTest, ALongArrayOfObjectsIsRead) {
  const std::string text = "[" + Repeat("{},", 999'998) + "{}]";
  const auto json = ParseJson(text);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 999'999U);
  EXPECT_EQ(Complaint("[" + Repeat("{},", 999'999) + "{}]"),
            "JSON: has too many values (limit 1000000)");
}

}  // namespace
}  // namespace quire
