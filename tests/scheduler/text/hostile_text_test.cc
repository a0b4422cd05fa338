// Bounds the cost of files and texts that were made to be slow or large. The cost is counted in
// steps and bytes, not in time.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "scheduler/text/pattern.h"
#include "scheduler/text/post_processor.h"
#include "scheduler/text/tokenizer.h"

namespace quire {
namespace {

using testing::HasSubstr;

// A byte-level tokenizer of a few letters, without a pattern.
Json PlainJson() {
  return Json::parse(R"({
    "added_tokens": [],
    "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "aa": 4},
              "merges": ["a a"]}})");
}

Json AddedJson(const std::string& content, bool rstrip) {
  return {{"id", 5},
          {"content", content},
          {"single_word", false},
          {"lstrip", true},
          {"rstrip", rstrip},
          {"normalized", false},
          {"special", false}};
}

Json RegexSplit(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json Replace(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// Puts a step in front of the other pre-tokenization steps.
void AddPreTokenizer(const Json& step, Json* json) {
  Json& steps = (*json)["pre_tokenizer"]["pretokenizers"];
  steps.insert(steps.begin(), step);
}

std::unique_ptr<Tokenizer> FromJson(const Json& json) {
  auto tokenizer = Tokenizer::FromJson(json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

struct Case {
  const char* name;
  std::function<void(Json&)> change;
};

// Each of these files makes a text much longer.
std::vector<Case> FilesThatGrow() {
  return {
      {"Replace", [](Json& j) { j["normalizer"] = Replace("a", std::string(64, 'b')); }},
      {"ReplacePattern",
       [](Json& j) {
         j["normalizer"] = Replace("a", std::string(64, 'b'));
         j["normalizer"]["pattern"] = {{"Regex", "a"}};
       }},
      {"ReplaceTwice",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {Replace("a", "bbb"), Replace("b", "aaa")}}};
       }},
      {"Metaspaces",
       [](Json& j) {
         for (int i = 0; i < 10; ++i) {
           AddPreTokenizer(RegexSplit("[abc]"), &j);
           AddPreTokenizer({{"type", "Metaspace"},
                            {"replacement", i % 2 == 0 ? "b" : "c"},
                            {"prepend_scheme", "always"},
                            {"split", false}},
                           &j);
         }
       }},
      {"PrependToEachSection",
       [](Json& j) {
         j["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(4000, 'b')}};
         j["added_tokens"].push_back(AddedJson("x", /*rstrip=*/false));
       }},
  };
}

TEST(HostileTextTest, TextThatGrowsIsRefused) {
  std::string text;
  while (text.size() < 8192) {
    text += "ax";
  }
  for (const Case& file : FilesThatGrow()) {
    Json json = PlainJson();
    file.change(json);
    auto tokenizer = FromJson(json);

    const absl::Status status = tokenizer->Encode(text, false, false).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << file.name;
    EXPECT_EQ(ReasonOf(status), "TOKENIZE_BUDGET") << file.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("too long")) << file.name;
    EXPECT_TRUE(tokenizer->Encode("a", false, false).ok()) << file.name;
  }
}

TEST(HostileTextTest, PatternThatReadsTheWholeTextForEachMatchIsRefused) {
  for (const char* pattern : {"a*c|a", "(a*a*c)|a", "(?:a|aa)+c|a", "a(?=a*c)|a", "(a+)+c|a"}) {
    Json json = PlainJson();
    AddPreTokenizer(RegexSplit(pattern), &json);
    auto tokenizer = FromJson(json);

    const absl::Status status = tokenizer->Encode(std::string(1 << 15, 'a'), false, false).status();

    EXPECT_EQ(ReasonOf(status), "TOKENIZE_BUDGET") << pattern;
    EXPECT_TRUE(tokenizer->Encode("aaaac", false, false).ok()) << pattern;
  }
}

TEST(HostileTextTest, FileThatAsksForTooMuchIsRefused) {
  const std::vector<Case> files = {
      {"TokenTooLong", [](Json& j) { j["model"]["vocab"][std::string(4097, 'a')] = 5; }},
      {"LongLiteralOfANormalizer",
       [](Json& j) { j["normalizer"] = Replace(std::string(257, 'a'), ""); }},
      {"LongLiteralOfASplit",
       [](Json& j) {
         Json split = RegexSplit("");
         split["pattern"] = {{"String", std::string(257, 'a')}};
         AddPreTokenizer(split, &j);
       }},
      {"LongCount", [](Json& j) { AddPreTokenizer(RegexSplit("a{257}c|a"), &j); }},
      {"LongCountWithoutAnEnd", [](Json& j) { AddPreTokenizer(RegexSplit("a{257,}c|a"), &j); }},
      {"LongUpperCount", [](Json& j) { AddPreTokenizer(RegexSplit("a{1,65535}c|a"), &j); }},
      {"ReferenceToAGroup", [](Json& j) { AddPreTokenizer(RegexSplit("(a+)\\1c|a"), &j); }},
      {"NamedReference", [](Json& j) { AddPreTokenizer(RegexSplit("(?<n>a+)(?P=n)c|a"), &j); }},
      {"ManySteps",
       [](Json& j) {
         for (int i = 0; i < 64; ++i) {  // and the one that is there
           AddPreTokenizer({{"type", "WhitespaceSplit"}}, &j);
         }
       }},
      {"AddedTokenThatGrows",
       [](Json& j) {
         j["normalizer"] = Replace("a", std::string(64, 'b'));
         j["added_tokens"].push_back(AddedJson(std::string(256, 'a'), false));
         j["added_tokens"][0]["normalized"] = true;
       }},
  };
  for (const Case& file : files) {
    Json json = PlainJson();
    file.change(json);

    const absl::Status status = Tokenizer::FromJson(json).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << file.name;
    EXPECT_EQ(ReasonOf(status), "TOKENIZER") << file.name;
  }
}

TEST(HostileTextTest, PatternHasGroupsThatCostNothingAMatch) {
  for (const char* pattern : {"(a)b|c",
                              "(?:a)b|c",
                              "a(?=b)|c",
                              "a(?!b)|c",
                              "(?<=a)b|c",
                              "(?<!a)b|c",
                              "(?>a+)b|c",
                              "(?i:a)b|c",
                              "[[:alpha:]:]b|c"}) {
    EXPECT_TRUE(Pattern::Compile(pattern).ok()) << pattern;
  }
  for (const char* pattern : {"(?<n>a)b|c",
                              "(?'n'a)b|c",
                              "(?P<n>a)b|c",
                              "(?|a)b|c",
                              "(a)(?1)|c",
                              "(a)(?(1)b|c)",
                              "a(?R)?c|b",
                              "a(?0)?c|b",
                              "a(?+1)(b)|c",
                              "(?C)a"}) {
    EXPECT_EQ(ReasonOf(Pattern::Compile(pattern).status()), "TOKENIZER") << pattern;
  }
}

TEST(HostileTextTest, LongCountIsSeenBehindWhatLooksLikeAClass) {
  for (const char* begin : {"[a:]", "[[:alpha:]]", "[]]", "[\\]]", "\\c[", "(?#[)", "(?^x)#[\n"}) {
    const std::string pattern = absl::StrCat(begin, "b{257}|c");

    EXPECT_EQ(ReasonOf(Pattern::Compile(pattern).status()), "TOKENIZER") << pattern;
  }
}

// A template that places a special token of num_ids ids num_uses times behind the text.
Json Template(size_t num_ids, size_t num_uses) {
  Json single = {{{"Sequence", {{"id", "A"}}}}};
  for (size_t i = 0; i < num_uses; ++i) {
    single.push_back({{"SpecialToken", {{"id", "x"}}}});
  }
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"special_tokens", {{"x", {{"id", "x"}, {"ids", std::vector<int>(num_ids, 0)}}}}}};
}

Json Sequence(const std::vector<Json>& processors) {
  return {{"type", "Sequence"}, {"processors", processors}};
}

TEST(HostileTextTest, TemplateBringsEachTextSoManyIdsAtMost) {
  const Json roberta = {{"type", "RobertaProcessing"}, {"sep", {"a", 0}}, {"cls", {"b", 1}}};
  const std::vector<Json> allowed = {Template(1024, 1),
                                     Template(1, 1024),
                                     Template(32, 32),
                                     Sequence({Template(512, 1), Template(512, 1)}),
                                     Sequence({Template(1022, 1), roberta})};
  const std::vector<Json> refused = {Template(1025, 1),
                                     Template(1, 1025),
                                     Template(2000, 2000),
                                     Sequence({Template(512, 1), Template(513, 1)}),
                                     Sequence({Template(1023, 1), roberta})};
  Json json = PlainJson();
  for (const Json& post_processor : allowed) {
    json["post_processor"] = post_processor;
    EXPECT_EQ(FromJson(json)->Encode("b", true, false)->size(), 1 + kMaxSpecialIds);
  }
  for (const Json& post_processor : refused) {
    json["post_processor"] = post_processor;
    const absl::Status status = Tokenizer::FromJson(json).status();

    EXPECT_EQ(ReasonOf(status), "TOKENIZER");
    EXPECT_THAT(std::string(status.message()), HasSubstr("more than 1024 token ids"));
  }
}

// -------------------------------------------------------------------------------------- counts

// Steps that encoding the text takes.
size_t StepsOf(const Tokenizer& tokenizer, const std::string& text) {
  TextBudget budget(text.size());
  auto ids = tokenizer.Encode(text, false, true, &budget);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return budget.num_steps();
}

std::string Repeat(std::string_view unit, size_t num_bytes) {
  std::string text;
  while (text.size() + unit.size() <= num_bytes) {
    text += unit;
  }
  return text;
}

TEST(HostileTextTest, WhiteSpaceAfterAddedTokensIsReadOnce) {
  constexpr size_t kBytes = 1 << 15;
  for (const char* unit : {" ", "  x", "x  "}) {
    for (const char* content : {" ", "x"}) {
      Json json = PlainJson();
      json["added_tokens"].push_back(AddedJson(content, /*rstrip=*/true));
      auto tokenizer = FromJson(json);

      EXPECT_LE(StepsOf(*tokenizer, Repeat(unit, kBytes)), 8 * kBytes) << unit << "|" << content;
    }
  }
}

TEST(HostileTextTest, StripsEqualThoseOfHuggingFace) {
  Json json = PlainJson();
  json["added_tokens"].push_back(AddedJson(" ", /*rstrip=*/true));
  auto tokenizer = FromJson(json);

  // Every space is a match, even if the match before consumed it.
  EXPECT_THAT(*tokenizer->Encode("b   b", false, false), testing::ElementsAre(1, 5, 5, 5, 1));
}

TEST(HostileTextTest, StepsOfOneLongWordGrowAsItsBytes) {
  auto tokenizer = FromJson(PlainJson());

  for (const char* unit : {"a", "ab", "aab"}) {
    const size_t short_steps = StepsOf(*tokenizer, Repeat(unit, 1 << 12));
    const size_t long_steps = StepsOf(*tokenizer, Repeat(unit, 1 << 18));

    EXPECT_LE(long_steps, 65 * short_steps) << unit;
  }
}

TEST(HostileTextTest, KnownTokenizersTakeAQuarterOfTheBudgetAtMost) {
  for (const char* name : {"gpt2",
                           "opt",
                           "llama3",
                           "qwen2",
                           "cased",
                           "bloom",
                           "llama2",
                           "mistral",
                           "metaspace",
                           "roberta_like"}) {
    auto tokenizer =
        Tokenizer::Load(absl::StrCat("tests/scheduler/text/testdata/", name, ".tokenizer.json"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const char* unit : {"x",
                             " ",
                             "_",
                             "1",
                             "\n",
                             "'",
                             "<",
                             "<s>",
                             "e\u0301",
                             "\u0390",
                             "\uAC01",
                             "▁",
                             "中",
                             "👍🏽",
                             "a b, c 12\n",
                             "\u0315\u0300"}) {
      const size_t steps = StepsOf(**tokenizer, Repeat(unit, 1 << 16));

      EXPECT_LE(steps * 4, kMaxStepsPerByte << 16) << name << " " << unit;
    }
  }
}

// ------------------------------------------------------------------------------------- stopping

TEST(HostileTextTest, StopCheckEndsATextWithItsStatus) {
  auto tokenizer = FromJson(PlainJson());
  const std::string text(4 * kStepsPerStopCheck, 'a');
  int num_checks = 0;
  TextBudget budget(text.size(), [&num_checks] {
    ++num_checks;
    return num_checks == 2 ? absl::CancelledError("left") : absl::OkStatus();
  });

  EXPECT_EQ(tokenizer->Encode(text, false, false, &budget).status(), absl::CancelledError("left"));
  EXPECT_EQ(num_checks, 2);
  EXPECT_LE(budget.num_steps(), 2 * text.size() + 3 * kStepsPerStopCheck);
}

TEST(HostileTextTest, StopCheckIsAskedInsideAMatch) {
  Json json = PlainJson();
  AddPreTokenizer(RegexSplit("(a+)+c|a"), &json);  // one match of 2^n steps
  auto tokenizer = FromJson(json);
  const std::string text(40, 'a');
  TextBudget budget(text.size(), [] { return absl::CancelledError("left"); });

  EXPECT_EQ(tokenizer->Encode(text, false, false, &budget).status(), absl::CancelledError("left"));
  EXPECT_LE(budget.num_steps(), kStepsPerStopCheck + text.size());
}

TEST(TextBudgetTest, WhatIsGivenUpStaysGivenUp) {
  TextBudget budget(10);

  EXPECT_TRUE(budget.HasRoomFor(kMaxFreeBytes + 10 * kMaxBytesPerByte));
  EXPECT_TRUE(budget.Spend(kMaxFreeSteps + 10 * kMaxStepsPerByte));
  EXPECT_FALSE(budget.Spend(1));
  EXPECT_FALSE(budget.Spend(0));
  EXPECT_FALSE(budget.HasRoomFor(0));
  EXPECT_EQ(ReasonOf(budget.status()), "TOKENIZE_BUDGET");
}

TEST(TextBudgetTest, TextThatIsTooLongGivesUpTheRest) {
  TextBudget budget(10);

  EXPECT_FALSE(budget.HasRoomFor(kMaxFreeBytes + 10 * kMaxBytesPerByte + 1));
  EXPECT_FALSE(budget.Spend(0));
  EXPECT_EQ(ReasonOf(budget.status()), "TOKENIZE_BUDGET");
}

}  // namespace
}  // namespace quire
