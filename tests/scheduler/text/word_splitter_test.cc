#include "scheduler/text/word_splitter.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/text/utf8.h"

namespace quire {
namespace {

struct KnownPattern {
  const char* name;
  const char* pattern;
  const char* in_pcre = nullptr;  // where PCRE2 reads the pattern otherwise
};

constexpr KnownPattern kKnownPatterns[] = {
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {"llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"bloom", R"( ?[^(\s|[.,!?…。，、।۔،])]+)", R"( ?[^(\s|.,!?…。，、।۔،)]+)"},
};

class WordSplitterTest : public testing::TestWithParam<KnownPattern> {};

std::vector<std::string> Words(const std::vector<TextSpan>& spans, const std::string& text) {
  std::vector<std::string> words;
  words.reserve(spans.size());
  for (const TextSpan& span : spans) {
    words.push_back(text.substr(span.begin, span.end - span.begin) + (span.is_match ? "+" : "-"));
  }
  return words;
}

// Draws characters at which the rules differ, then any of Unicode 14, which PCRE2 10.42 knows.
// U+180E is left out, because PCRE2 counts it as white space and Unicode does not.
char32_t RandomCharacter(std::mt19937* random) {
  static constexpr char32_t kInteresting[] = {
      ' ',   ' ',   ' ',    '\n',   '\r',    '\t',   0x0B,  0x85,  0xA0, 0x3000, 0x2028, '\'',
      '\'',  's',   'S',    't',    'r',     'e',    'E',   'v',   'm',  'l',    'L',    'd',
      0x17F, 'a',   'Z',    0xE9,   0x4E2D,  '1',    '2',   0x663, 0xB2, 0x2167, '.',    '-',
      '_',   0x301, 0x200B, 0x200D, 0x1F600, 0,      '(',   ')',   '|',  '[',    ']',    ',',
      '!',   '?',   0x2026, 0x3002, 0xFF0C,  0x3001, 0x964, 0x6D4, 0x60C};
  if ((*random)() % 8 != 0) {
    return kInteresting[(*random)() % std::size(kInteresting)];
  }
  auto any = static_cast<char32_t>((*random)() % 0x1C80);
  return any == 0x180E || any == 0x0CF3 || any == 0x0ECE ? 'x' : any;
}

TEST_P(WordSplitterTest, WordsAreThoseOfThePattern) {
  auto splitter = WordSplitter::ForPattern(GetParam().pattern);
  ASSERT_TRUE(splitter.has_value());
  auto pattern =
      Pattern::Compile(GetParam().in_pcre != nullptr ? GetParam().in_pcre : GetParam().pattern);
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  std::mt19937 random(17);
  for (int round = 0; round < 40000; ++round) {
    std::string text;
    for (size_t i = random() % 24; i > 0; --i) {
      AppendUtf8(RandomCharacter(&random), &text);
    }
    std::vector<TextSpan> expected;
    TextBudget budget(text.size());
    ASSERT_TRUE(pattern->FindAll(text, &budget, &expected).ok());

    std::vector<TextSpan> spans;
    splitter->FindAll(text, &spans);

    ASSERT_EQ(Words(spans, text), Words(expected, text));
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns,
                         WordSplitterTest,
                         testing::ValuesIn(kKnownPatterns),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(WordSplitterTest, OtherPatternsHaveNoSplitter) {
  EXPECT_FALSE(WordSplitter::ForPattern("").has_value());
  EXPECT_FALSE(WordSplitter::ForPattern(R"(\s+)").has_value());
}

TEST(PatternTest, SyntaxThatOnigurumaReadsOtherwiseIsRefused) {
  for (const char* pattern : {R"(\h+)",
                              R"(\Ra)",
                              "[a[bc]]",
                              "[a-z&&[^b]]",
                              "(?m)a",
                              "(?x: a )",
                              "(*UCP)a",
                              "a*",
                              "",
                              "(",
                              "[",
                              R"(a\Kb)",
                              R"((?i)a)"}) {
    EXPECT_FALSE(Pattern::Compile(pattern).ok()) << pattern;
  }
}

TEST(PatternTest, OrdinaryPatternsCompile) {
  for (const char* pattern : {R"([\[\]]+)",
                              "[[:alpha:]]+",
                              R"(\p{Han}+)",
                              R"([^\s&]+&&)",
                              "(?i:a|b)c",
                              "(?:x)",
                              "(?<!a)b",
                              "[]a]",
                              R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"}) {
    EXPECT_TRUE(Pattern::Compile(pattern).ok()) << pattern << Pattern::Compile(pattern).status();
  }
}

TEST(PatternTest, EndlessBacktrackingEndsInAnError) {
  auto pattern = Pattern::Compile("(?:a|aa|aaa)+[bd]");
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  std::vector<TextSpan> spans;

  TextBudget budget(4001);
  absl::Status status = pattern->FindAll(std::string(4000, 'a') + "c", &budget, &spans);

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
