#include "scheduler/text/utf8.h"

#include <string>

#include "gtest/gtest.h"

#include "common/base/error.h"

namespace quire {
namespace {

// The first bad byte, -1 when the text is valid.
int BadByte(std::string_view text) {
  size_t bad = FindInvalidUtf8(text);
  return bad == std::string_view::npos ? -1 : static_cast<int>(bad);
}

TEST(Utf8Test, TextOfEveryLengthOfCharacterIsValid) {
  EXPECT_EQ(BadByte(""), -1);
  EXPECT_EQ(BadByte("plain text, longer than eight bytes"), -1);
  EXPECT_EQ(
      BadByte("\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xEF\xBF\xBF \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"), -1);
  EXPECT_EQ(BadByte("\xED\x9F\xBF \xEE\x80\x80"), -1);
  EXPECT_EQ(BadByte(std::string_view("\0a\0", 3)), -1);
}

TEST(Utf8Test, LoneContinuationByteIsRefused) {
  EXPECT_EQ(BadByte("\x80"), 0);
  EXPECT_EQ(BadByte("ab\xBF"), 2);
  EXPECT_EQ(BadByte("\xC3\xA9\xA9"), 2);
}

TEST(Utf8Test, OverlongFormsAreRefused) {
  EXPECT_EQ(BadByte("\xC0\x80"), 0);
  EXPECT_EQ(BadByte("\xC1\xBF"), 0);
  EXPECT_EQ(BadByte("\xE0\x80\x80"), 0);
  EXPECT_EQ(BadByte("\xE0\x9F\xBF"), 0);
  EXPECT_EQ(BadByte("\xF0\x80\x80\x80"), 0);
  EXPECT_EQ(BadByte("\xF0\x8F\xBF\xBF"), 0);
}

TEST(Utf8Test, SurrogatesAreRefused) {
  EXPECT_EQ(BadByte("\xED\xA0\x80"), 0);
  EXPECT_EQ(BadByte("\xED\xBF\xBF"), 0);
  EXPECT_EQ(BadByte("x\xED\xA0\xBD\xED\xB8\x80"), 1);
}

TEST(Utf8Test, ValuesAboveTheLastCodePointAreRefused) {
  EXPECT_EQ(BadByte("\xF4\x90\x80\x80"), 0);
  EXPECT_EQ(BadByte("\xF5\x80\x80\x80"), 0);
  EXPECT_EQ(BadByte("\xFE"), 0);
  EXPECT_EQ(BadByte("\xFF"), 0);
}

TEST(Utf8Test, CutTailIsRefused) {
  EXPECT_EQ(BadByte("\xC3"), 0);
  EXPECT_EQ(BadByte("12345678\xE2\x82"), 8);
  EXPECT_EQ(BadByte("a\xF0\x9F\x98"), 1);
}

TEST(Utf8Test, EveryCodePointSurvivesEncodingAndDecoding) {
  for (char32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) {
      continue;
    }
    std::string text;

    AppendUtf8(code_point, &text);
    Utf8Step step = NextUtf8(text);
    size_t position = 0;

    ASSERT_EQ(step.unit, Utf8Unit::kCharacter);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(step.code_point, code_point);
    ASSERT_EQ(DecodeValidUtf8(text, &position), code_point);
    ASSERT_EQ(position, text.size());
  }
}

TEST(Utf8Test, InvalidStepCoversTheMaximalSubpart) {
  EXPECT_EQ(NextUtf8("\xE2\x82x").length, 2u);
  EXPECT_EQ(NextUtf8("\xF0\x9F\x98x").length, 3u);
  EXPECT_EQ(NextUtf8("\xE0\x80\x80").length, 1u);
  EXPECT_EQ(NextUtf8("\xED\xA0\x80").length, 1u);
  EXPECT_EQ(NextUtf8("\xF0\x9F").unit, Utf8Unit::kIncomplete);
}

TEST(Utf8Test, CheckNamesFieldReasonAndByte) {
  absl::Status status = CheckUtf8("prompt", "ab\xFF");

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "INVALID_UTF8");
  EXPECT_EQ(status.message(), "prompt: must be valid UTF-8 (bad byte at 2)");
  EXPECT_TRUE(CheckUtf8("prompt", "ab").ok());
}

}  // namespace
}  // namespace quire
