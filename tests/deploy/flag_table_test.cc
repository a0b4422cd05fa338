#include "deploy/cli/flag_table.h"

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

struct Values {
  std::string text;
  int32_t small = 0;
  uint64_t large = 0;
  double real = 0;
  double rate = 0;
  bool on = false;
  std::vector<int32_t> list;
};

absl::Status Parse(Values& v, const std::vector<std::string>& args) {
  FlagTable flags;
  flags.Text("some-text", [&](const std::string& t) { v.text = t; });
  flags.Int32("small", [&](int32_t n) { v.small = n; });
  flags.Uint64("large", [&](uint64_t n) { v.large = n; });
  flags.Utf8Text("utf8", [&](const std::string& t) { v.text = t; });
  flags.Double("real", [&](double x) { v.real = x; });
  flags.DoubleOrInf("rate", [&](double x) { v.rate = x; });
  flags.Float("single", [&](float x) { v.real = x; });
  flags.Switch("on", [&] { v.on = true; });
  flags.Int32List("list", [&](int32_t n) { v.list.push_back(n); });
  return flags.Parse(args);
}

TEST(FlagTableTest, TakesDashesUnderscoresAndBothKindsOfValue) {
  Values v;

  absl::Status status = Parse(v,
                              {"--some_text=a=b",
                               "--small",
                               "-7",
                               "--large",
                               "18446744073709551615",
                               "--real=0.5",
                               "--rate=inf",
                               "--on",
                               "--list=1, 2,3"});

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(v.text, "a=b");
  EXPECT_EQ(v.small, -7);
  EXPECT_EQ(v.large, 18446744073709551615ULL);
  EXPECT_EQ(v.real, 0.5);
  EXPECT_EQ(v.rate, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(v.on);
  EXPECT_EQ(v.list, (std::vector<int32_t>{1, 2, 3}));
}

TEST(FlagTableTest, RefusesWhatItDoesNotKnowAndWhatIsNoNumber) {
  Values v;

  EXPECT_EQ(Parse(v, {"--other", "1"}).message(), "unknown flag --other");
  EXPECT_EQ(Parse(v, {"word"}).message(), "not a flag: word");
  EXPECT_EQ(Parse(v, {"--small"}).message(), "--small needs a value");
  EXPECT_EQ(Parse(v, {"--small", "4294967296"}).message(), "--small needs a 32-bit integer");
  EXPECT_EQ(Parse(v, {"--list=1,x"}).message(), "--list needs whole numbers separated by commas");
  for (const char* odd : {"nan", "inf", "-inf", "1e999"}) {
    EXPECT_EQ(Parse(v, {"--real", odd}).message(), "--real needs a finite number");
    EXPECT_EQ(Parse(v, {"--single", odd}).message(), "--single needs a finite number");
  }
  EXPECT_EQ(Parse(v, {"--rate=nan"}).message(), "--rate needs a number or inf");
}

TEST(FlagTableTest, TextForJsonIsUtf8) {
  Values v;

  EXPECT_TRUE(Parse(v, {"--utf8", "\xC3\xA9 \x01 \"\\"}).ok());
  EXPECT_EQ(v.text, "\xC3\xA9 \x01 \"\\");
  for (const char* odd : {"\xFF", "a\xC3", "\xED\xA0\x80"}) {
    EXPECT_EQ(Parse(v, {"--utf8", odd}).message(), "--utf8 needs text in UTF-8");
    EXPECT_TRUE(Parse(v, {"--some-text", odd}).ok());
  }
}

}  // namespace
}  // namespace quire
