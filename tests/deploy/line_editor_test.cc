#include "deploy/cli/line_editor.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

using Event = LineEditor::Event;

// Returns the lines that the keys make, given one byte at a time.
std::vector<std::string> LinesOf(const std::string& keys) {
  LineEditor editor("> ", 1000);
  std::vector<std::string> lines;
  for (const char key : keys) {
    std::string_view one(&key, 1);
    if (editor.Put(&one) == Event::kLine) {
      lines.push_back(editor.TakeLine());
    }
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(LineEditorTest, KeysEraseACharacterAWordOrTheLine) {
  EXPECT_EQ(LinesOf("\x7f\x08"
                    "ab\x7f"
                    "c\n"),
            Lines{"ac"});
  EXPECT_EQ(LinesOf("a\xC3\xA9\xE6\x97\xA5\xF0\x9F\x99\x82\x7f\x7f\n"), Lines{"a\xC3\xA9"});
  EXPECT_EQ(LinesOf("one two  \x17three\n"), Lines{"one three"});
  EXPECT_EQ(LinesOf("one two\x15three\r"), Lines{"three"});
}

TEST(LineEditorTest, EscapeSequencesAndOtherControlCharactersAreDropped) {
  EXPECT_EQ(LinesOf("a\x1b[Ab\x1b[1;5Cc\x1bOHd\x1bxe\x01\x04\n"), Lines{"abcde"});
  EXPECT_EQ(LinesOf("a\x1b\nb\n"), (Lines{"a", "b"}));
}

TEST(LineEditorTest, APasteIsPartOfOneLine) {
  EXPECT_EQ(LinesOf("a\x1b[200~b\nc\r\td\x15\x04\x1b[201~e\n"), Lines{"ab\nc\n\tde"});
}

TEST(LineEditorTest, CtrlDEndsTheInputOnlyOnAnEmptyLine) {
  LineEditor editor("> ", 1000);
  std::string_view keys = "a\x04\x7f\x04rest";
  EXPECT_EQ(editor.Put(&keys), Event::kEndOfInput);
  EXPECT_EQ(keys, "rest");
}

TEST(LineEditorTest, ALineBeyondTheLimitShowsByItsSize) {
  LineEditor editor("> ", 4);
  std::string_view keys = "12345678\n1234\n";
  EXPECT_EQ(editor.Put(&keys), Event::kLine);
  EXPECT_EQ(editor.TakeLine().size(), 5U);
  EXPECT_EQ(editor.Put(&keys), Event::kLine);
  EXPECT_EQ(editor.TakeLine(), "1234");
}

TEST(LineEditorTest, TheEchoHasNoControlCharactersAndErasesWideOnes) {
  LineEditor editor("> ", 1000);
  std::string_view keys =
      "a\xC2\x9B"
      "b";
  EXPECT_EQ(editor.Put(&keys), Event::kNeedsKeys);
  EXPECT_EQ(editor.TakeEcho(), "a\\u009bb");
  keys = "\xE6\x97\xA5\x7f";
  editor.Put(&keys);
  EXPECT_EQ(editor.TakeEcho(), "\xE6\x97\xA5\b \b\b \b");
  keys = "\tc\x7f\x7f";
  editor.Put(&keys);
  EXPECT_EQ(editor.TakeEcho(), "\tc\b \b\n> a\\u009bb");
}

}  // namespace
}  // namespace quire
