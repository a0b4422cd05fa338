#include "scheduler/text/stop_matcher.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

namespace {

std::atomic<size_t> num_allocated_bytes = 0;

}  // namespace

// Replaces the library's operator new, to count allocated bytes. Inlined, new and delete look
// mismatched to the compiler.
ABSL_ATTRIBUTE_NOINLINE void* operator new(size_t bytes) {
  num_allocated_bytes += bytes;
  void* memory = std::malloc(bytes);
  return memory != nullptr ? memory : throw std::bad_alloc();
}
ABSL_ATTRIBUTE_NOINLINE void operator delete(void* memory) noexcept { std::free(memory); }
ABSL_ATTRIBUTE_NOINLINE void operator delete(void* memory, size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace quire {
namespace {

StopMatcher Make(const std::vector<std::string>& stops, bool include = false) {
  auto matcher = StopMatcher::Create(stops, include);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

// Pushes the pieces and flushes; "|" ends the text of every call.
std::string Stream(StopMatcher matcher, const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) {
    StopMatcher::Output output = matcher.Push(piece);
    out += output.text + (output.matched ? "!" : "|");
  }
  return out + matcher.Flush();
}

TEST(StopMatcherTest, TextPassesWithoutStopStrings) {
  EXPECT_EQ(Stream(Make({}), {"abc", "", "def"}), "abc||def|");
}

TEST(StopMatcherTest, TextBeforeTheStopStringIsSentAndTheRestDropped) {
  EXPECT_EQ(Stream(Make({"END"}), {"one END two", "three"}), "one !!");
}

TEST(StopMatcherTest, AStopStringThatMayNotMatchIsText) {
  StopMatcher matcher = Make({"END", "NDx"});
  EXPECT_EQ(matcher.Push("an END", /*may_match=*/false).text, "an ");
  EXPECT_FALSE(matcher.matched());

  const StopMatcher::Output output = matcher.Push("xEND");

  EXPECT_TRUE(output.matched);
  EXPECT_EQ(output.text, "E");
  EXPECT_EQ(matcher.matched_index(), 1);
}

TEST(StopMatcherTest, StopStringIsKeptWhenAsked) {
  EXPECT_EQ(Stream(Make({"END"}, /*include=*/true), {"one EN", "D two"}), "one |END!");
}

TEST(StopMatcherTest, PossibleBeginningIsHeldBackUntilItIsDecided) {
  EXPECT_EQ(Stream(Make({"END"}), {"xE", "N", "x", "EN"}), "x||ENx||EN");
  EXPECT_EQ(Stream(Make({"END"}), {"xE", "N", "D", "y"}), "x||!!");
}

TEST(StopMatcherTest, HeldTextShrinksToTheLongestPossibleBeginning) {
  EXPECT_EQ(Stream(Make({"aab"}), {"a", "a", "a", "a", "b"}), "||a|a|!");
}

TEST(StopMatcherTest, FirstCompleteMatchWins) {
  StopMatcher matcher = Make({"abcd", "bc"});

  StopMatcher::Output output = matcher.Push("abcd");

  EXPECT_TRUE(output.matched);
  EXPECT_EQ(output.text, "a");
  EXPECT_EQ(matcher.matched_index(), 1);
}

TEST(StopMatcherTest, LongestOfTheMatchesThatEndTogetherWins) {
  StopMatcher matcher = Make({"c", "abc", "bc"});

  StopMatcher::Output output = matcher.Push("xabc");

  EXPECT_EQ(output.text, "x");
  EXPECT_EQ(matcher.matched_index(), 1);
}

TEST(StopMatcherTest, MatchIsFinal) {
  StopMatcher matcher = Make({"."});
  matcher.Push("a.");

  StopMatcher::Output again = matcher.Push("b.");

  EXPECT_TRUE(again.matched);
  EXPECT_EQ(again.text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, CopyGoesItsOwnWay) {
  StopMatcher first = Make({"END"});
  first.Push("E");

  StopMatcher second = first;

  EXPECT_EQ(first.Push("ND").text, "");
  EXPECT_TRUE(first.matched());
  EXPECT_EQ(second.Push("x").text, "Ex");
  EXPECT_FALSE(second.matched());
}

TEST(StopMatcherTest, LimitsOfTheStringsAreKept) {
  auto reason = [](const std::vector<std::string>& stops) {
    auto matcher = StopMatcher::Create(stops, false);
    return matcher.ok() ? "" : ReasonOf(matcher.status());
  };

  EXPECT_EQ(reason(std::vector<std::string>(16, "x")), "");
  EXPECT_EQ(reason(std::vector<std::string>(17, "x")), "STOP_LIMIT");
  EXPECT_EQ(reason({std::string(256, 'x')}), "");
  EXPECT_EQ(reason({std::string(257, 'x')}), "STOP_LIMIT");
  EXPECT_EQ(reason({"a", ""}), "STOP_LIMIT");
  EXPECT_EQ(reason({"\xFF"}), "STOP_LIMIT");
}

TEST(StopMatcherTest, MatcherTakesAtMostFourTimesTheBytesOfItsStrings) {
  std::mt19937 random(5);
  for (size_t num_letters : {1, 2, 26}) {
    std::vector<std::string> stops(kMaxStopStrings, std::string(kMaxStopStringBytes, 'a'));
    for (std::string& stop : stops) {
      for (char& c : stop) {
        c = static_cast<char>('a' + random() % num_letters);
      }
    }
    const size_t before = num_allocated_bytes;

    StopMatcher matcher = Make(stops);

    EXPECT_LE(num_allocated_bytes - before, 4 * kMaxStopStrings * kMaxStopStringBytes)
        << num_letters << " letters";
  }
}

// The rule, applied to the whole text at once.
std::string Expected(const std::string& text,
                     const std::vector<std::string>& stops,
                     bool include,
                     bool* matched) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) {
      *matched = true;
      return text.substr(0, include ? end : end - longest);
    }
  }
  *matched = false;
  return text;
}

TEST(StopMatcherTest, ResultIsThatOfTheWholeTextHoweverItIsCut) {
  std::mt19937 random(3);
  auto word = [&random](size_t max_bytes) {
    std::string text(1 + random() % max_bytes, 'a');
    for (char& c : text) {
      c = static_cast<char>('a' + random() % 2);
    }
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& stop : stops) {
      stop = word(7);
    }
    bool include = round % 2 == 0;
    std::string text = word(40);
    bool expect_match = false;
    std::string expected = Expected(text, stops, include, &expect_match);
    StopMatcher matcher = Make(stops, include);

    std::string streamed;
    for (size_t begin = 0; begin < text.size();) {
      size_t size = random() % 4;
      streamed += matcher.Push(text.substr(begin, size)).text;
      begin += size;
    }
    streamed += matcher.Flush();

    ASSERT_EQ(streamed, expected) << "text " << text << " round " << round;
    ASSERT_EQ(matcher.matched(), expect_match);
  }
}

}  // namespace
}  // namespace quire
