#include "common/base/log.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <nlohmann/json.hpp>

#include "tests/support/capture_log.h"

namespace quire {
namespace {

class LogTest : public testing::Test {
 protected:
  ~LogTest() override {
    SetLogFormat(LogFormat::kText);
    SetLogLevel(LogLevel::kInfo);
  }

  static std::string Written(std::string_view sentence, LogFields fields) {
    CaptureStderr();
    LogWarning(sentence, fields);
    return GetCapturedStderr();
  }
};

TEST_F(LogTest, TextIsOneLineOfWords) {
  EXPECT_THAT(Written("worker lost", {{"rank", "1"}, {"cause", "say \"no\"\nmore"}, {"path", ""}}),
              testing::MatchesRegex("[-0-9]+T[0-9:.]+Z WARNING worker lost rank=1 "
                                    "cause=\"say .\"no.\" more\" path=\"\"\n"));
}

TEST_F(LogTest, TextHoldsNoControlCharacter) {
  EXPECT_THAT(Written("worker lost", {{"cause", "\x1b[2J\x7f"}, {"rank", "a\vb"}}),
              testing::EndsWith("Z WARNING worker lost cause=\" [2J \" rank=\"a b\"\n"));
}

TEST_F(LogTest, JsonIsOneObjectALineWhateverAValueHolds) {
  SetLogFormat(LogFormat::kJson);
  const std::string line = Written(
      "worker lost", {{"rank", "1"}, {"cause", "say \"no\"\nmore\x01"}, {"path", "\xff/é"}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto object = nlohmann::json::parse(line);
  EXPECT_THAT(object["time"].get<std::string>(), testing::MatchesRegex("[-0-9]+T[0-9:.]+Z"));
  EXPECT_EQ(object["level"], "WARNING");
  EXPECT_EQ(object["message"], "worker lost");
  EXPECT_EQ(object["rank"], "1");
  EXPECT_EQ(object["cause"], "say \"no\"\nmore\x01");
  EXPECT_EQ(object["path"], "\xef\xbf\xbd/é");  // U+FFFD for what is no UTF-8
  EXPECT_EQ(object.size(), 6U);
}

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  SetLogLevel(LogLevel::kError);
  EXPECT_EQ(Written("worker lost", {}), "");
}

}  // namespace
}  // namespace quire
