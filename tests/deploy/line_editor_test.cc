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

TEST(LineEditorTest, ACharacterBeyondAsciiEndsASequenceAndIsText) {
  EXPECT_EQ(LinesOf("caf\x1b\xC3\xA9 x\n"), Lines{"caf\xC3\xA9 x"});
  EXPECT_EQ(LinesOf("\x1b\xE6\x97\xA5\xE6\x9C\xAC\n"), Lines{"\xE6\x97\xA5\xE6\x9C\xAC"});
  EXPECT_EQ(LinesOf("a\x1b[1;\xE6\x97\xA5] b\n"), Lines{"a\xE6\x97\xA5] b"});
  EXPECT_EQ(LinesOf("caf\x1b\xC3\xA9\x7f\n"), Lines{"caf"});
}

TEST(LineEditorTest, AFunctionKeyOfTheLinuxConsoleIsOneSequence) {
  EXPECT_EQ(LinesOf("x\x1b[[Ay\x1b[[E\n"), Lines{"xy"});
}

TEST(LineEditorTest, AStrayContinuationByteIsACharacterOfItsOwn) {
  EXPECT_EQ(LinesOf("ab\x80\x7f\n"), Lines{"ab"});
  EXPECT_EQ(LinesOf("a\xC3\xA9\x80\x7f\n"), Lines{"a\xC3\xA9"});
  EXPECT_EQ(LinesOf("a\x80\x80\x80\x80\x7f\x7f\n"), Lines{"a\x80\x80"});
  EXPECT_EQ(LinesOf("a\xE6\x97\x7f\n"), Lines{"a"});
  EXPECT_EQ(LinesOf("\x80\x7f\x7f\n"), Lines{""});
}

TEST(LineEditorTest, CrLfIsOneLineEnd) {
  EXPECT_EQ(LinesOf("\x1b[200~l1\r\nl2\r\n\x1b[201~\r"), Lines{"l1\nl2\n"});
  EXPECT_EQ(LinesOf("\x1b[200~a\r\rb\n\nc\x1b[201~\r"), Lines{"a\n\nb\n\nc"});
  EXPECT_EQ(LinesOf("a\r\nb\r\r\n"), (Lines{"a", "b", ""}));
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
  keys = "\x7f\x7f";
  editor.Put(&keys);
  EXPECT_EQ(editor.TakeEcho(), "\b \b\n> a");
}

TEST(LineEditorTest, CtrlWDrawsAnewOnceHoweverManyTabsItErases) {
  LineEditor editor("> ", 1000);
  std::string_view keys = "one two\t\t\t";
  editor.Put(&keys);
  editor.TakeEcho();
  keys = "\x17";
  editor.Put(&keys);
  EXPECT_EQ(editor.TakeEcho(), "\n> one ");
  keys = "\x17";
  editor.Put(&keys);
  EXPECT_EQ(editor.TakeEcho(), "\b \b\b \b\b \b\b \b");
}

}  // namespace
}  // namespace quire
