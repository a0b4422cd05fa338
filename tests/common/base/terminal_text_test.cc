#include "common/base/terminal_text.h"

#include <string>

#include "gtest/gtest.h"

#include "common/base/printable.h"

namespace quire {
namespace {

std::string Escaped(std::string_view text) {
  TerminalText terminal;
  std::string escaped = terminal.Escape(text);
  escaped += terminal.End();
  return escaped;
}

TEST(TerminalTextTest, ControlCharactersAreEscapedAndNothingElse) {
  EXPECT_EQ(Escaped("a\tb\n"), "a\tb\n");
  EXPECT_EQ(Escaped("\x1b]0;title\x07"), "\\u001b]0;title\\u0007");
  EXPECT_EQ(Escaped(std::string_view("\0\r\x7f", 3)), "\\u0000\\u000d\\u007f");
  EXPECT_EQ(Escaped("\xC2\x9B"
                    "2J"),
            "\\u009b2J");
  // Letters whose bytes are C1 alone: U+00DB, U+011B, U+205B, U+1F61B.
  for (const char* letters : {"é ß \xC3\x9B", "\xC4\x9B", "\xE2\x81\x9B", "\xF0\x9F\x98\x9B"}) {
    EXPECT_EQ(Escaped(letters), letters);
  }
}

// A terminal without UTF-8 takes 0x9B for CSI.
TEST(TerminalTextTest, BytesOfNoCharacterAreEscapedWhereTheyControl) {
  EXPECT_EQ(Escaped("\x9B"
                    "2J"),
            "\\u009b2J");
  EXPECT_EQ(Escaped("\xC3\x9B\x9B"), "\xC3\x9B\\u009b");
  EXPECT_EQ(Escaped("\xC3\x1B\x9B"), "\xC3\\u001b\\u009b");
  EXPECT_EQ(Escaped("\xFF\xC2"), "\xFF\xC2");
  EXPECT_EQ(Escaped("\xC2\xC2\x9B"), "\xC2\\u009b");
  EXPECT_EQ(Escaped("\xC2\xA9\x9B"), "\xC2\xA9\\u009b");
}

TEST(TerminalTextTest, WhereAStreamIsCutMakesNoDifference) {
  const std::string text = "a\x1b[31m\xC2\x9B é \xC2\xA9 \xE2\x81\x9B \xF0\x9F\x98\x9B \x9B\xC2";
  const std::string whole = Escaped(text);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    TerminalText terminal;
    std::string pieces = terminal.Escape(text.substr(0, cut));
    pieces += terminal.Escape(text.substr(cut));
    pieces += terminal.End();
    EXPECT_EQ(pieces, whole) << cut;
  }
}

TEST(PrintableTest, ALineHasNoControlCharacter) {
  EXPECT_EQ(OneLine("\x1b[2J\n\x7f\xC2\x9B é \xC4\x9B"), "?[2J??? é \xC4\x9B");
}

}  // namespace
}  // namespace quire
