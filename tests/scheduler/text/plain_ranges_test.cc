// Special tokens in prompts of which parts are a client's.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/read_file.h"
#include "common/json/json.h"
#include "scheduler/text/range_map.h"
#include "scheduler/text/text_budget.h"
#include "scheduler/text/tokenizer.h"

namespace quire {
namespace {

using testing::ElementsAre;

constexpr char kFolder[] = "tests/scheduler/text/testdata/";

struct Part {
  std::string text;
  bool is_client = false;
};

Json ReadJson(const std::string& path) {
  const auto text = ReadFile(path, 64 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? Json::parse(*text) : Json();
}

std::vector<TokenId> EncodeParts(const Tokenizer& tokenizer, const std::vector<Part>& parts) {
  std::string text;
  std::vector<ByteRange> ranges;
  for (const Part& part : parts) {
    const size_t begin = text.size();
    text += part.text;
    if (!part.is_client || part.text.empty()) {
      continue;
    }
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = text.size();
    } else {
      ranges.push_back({begin, text.size()});
    }
  }
  TextBudget budget(text.size());
  const auto ids = tokenizer.Encode(text, false, true, ranges, &budget);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

TEST(PlainRangesTest, PromptsHaveTheIdsOfHuggingFace) {
  const Json cases = ReadJson(absl::StrCat(kFolder, "plain_ranges.golden.json"));
  ASSERT_GE(cases.size(), 600u);
  std::string loaded;
  std::unique_ptr<Tokenizer> tokenizer;
  for (const Json& each : cases) {
    const std::string name = each["tokenizer"];
    const bool is_normalized = each["normalized"];
    if (const std::string key = absl::StrCat(name, is_normalized); key != loaded) {
      Json file = ReadJson(kFolder + name);
      for (Json& token : file["added_tokens"]) {
        token["normalized"] =
            token["normalized"].get<bool>() || (is_normalized && token["special"].get<bool>());
      }
      auto made = Tokenizer::FromJson(file);
      ASSERT_TRUE(made.ok()) << made.status();
      tokenizer = *std::move(made);
      loaded = key;
    }
    std::vector<Part> parts;
    for (const Json& part : each["parts"]) {
      parts.push_back({part[0], part[1] != 0});
    }
    EXPECT_EQ(EncodeParts(*tokenizer, parts), each["ids"].get<std::vector<TokenId>>()) << each;
  }
}

// Letters are tokens by their place in the alphabet, '<' is 26, '>' is 27; then come the added
// tokens. All but those that begin with "plain" are special.
std::unique_ptr<Tokenizer> Letters(const std::vector<std::string>& added, bool normalized = false) {
  Json vocab = Json::object();
  for (int i = 0; i < 26; ++i) {
    vocab[std::string(1, static_cast<char>('a' + i))] = i;
  }
  vocab["<"] = 26;
  vocab[">"] = 27;
  Json tokens = Json::array();
  for (size_t i = 0; i < added.size(); ++i) {
    tokens.push_back({{"id", 28 + i},
                      {"content", added[i]},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", added[i] == "<strip>"},
                      {"normalized", normalized},
                      {"special", !added[i].starts_with("plain")}});
  }
  const Json normalizer =
      normalized ? Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "Strip",
          "strip_left": true, "strip_right": true}, {"type": "NFKC"}, {"type": "Replace",
          "pattern": {"String": "!!"}, "content": "<a>"}, {"type": "Lowercase"}]})")
                 : Json();
  auto tokenizer = Tokenizer::FromJson(
      {{"added_tokens", tokens},
       {"normalizer", normalizer},
       {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
       {"decoder", {{"type", "ByteLevel"}}},
       {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(PlainRangesTest, OneByteOfAClientMakesASpecialTokenPlain) {
  const auto tokenizer = Letters({"<s>"});
  EXPECT_THAT(EncodeParts(*tokenizer, {{"a<s>b"}}), ElementsAre(0, 28, 1));
  for (const auto& split : {std::pair(0, 3), {0, 1}, {1, 2}, {2, 3}, {0, 2}, {1, 3}}) {
    const std::string text = "<s>";
    EXPECT_THAT(EncodeParts(*tokenizer,
                            {{absl::StrCat("a", text.substr(0, split.first))},
                             {text.substr(split.first, split.second - split.first), true},
                             {absl::StrCat(text.substr(split.second), "b")}}),
                ElementsAre(0, 26, 18, 27, 1))
        << split.first << " " << split.second;
  }
  EXPECT_THAT(EncodeParts(*tokenizer, {{"a", true}, {"<s>"}, {"b", true}}), ElementsAre(0, 28, 1));
}

TEST(PlainRangesTest, TextOfAClientHidesNoTokenOfTheTemplate) {
  // A longer token that ends in the client's text, and one that begins there.
  EXPECT_THAT(EncodeParts(*Letters({"<s>", "<s>x"}), {{"<s>"}, {"xy", true}}),
              ElementsAre(28, 23, 24));
  EXPECT_THAT(EncodeParts(*Letters({"<s>", "z<"}), {{"z", true}, {"<s>"}}), ElementsAre(25, 28));
  EXPECT_THAT(EncodeParts(*Letters({"<s>", "z<"}), {{"z<s>"}}), ElementsAre(29, 18, 27));
}

TEST(PlainRangesTest, TokensThatAreNotSpecialCountEverywhere) {
  EXPECT_THAT(EncodeParts(*Letters({"plain"}), {{"plain", true}, {"pl"}, {"ain", true}}),
              ElementsAre(28, 28));
}

TEST(PlainRangesTest, ATokenStripsTheSpaceOfAClient) {
  EXPECT_THAT(EncodeParts(*Letters({"<strip>"}), {{"<strip>"}, {"  a", true}}), ElementsAre(28, 0));
}

TEST(PlainRangesTest, RangesPassTheNormalizer) {
  const auto tokenizer = Letters({"<a>"}, /*normalized=*/true);
  EXPECT_THAT(EncodeParts(*tokenizer, {{"  <A>"}, {"!!<A>", true}, {"!!<a>"}}),
              ElementsAre(28, 26, 0, 27, 26, 0, 27, 28, 28));
  // A client's accent changes the character before it, and nothing else.
  EXPECT_THAT(EncodeParts(*tokenizer, {{"<a>be"}, {"\u0301\u0301", true}, {"<a>"}, {"<a>", true}}),
              ElementsAre(28, 1, 28, 26, 0, 27));
  EXPECT_THAT(EncodeParts(*tokenizer, {{"<a"}, {"\uFF1E", true}}), ElementsAre(26, 0, 27));
}

TEST(PlainRangesTest, RangesNeedNotLieInTheText) {
  const auto tokenizer = Letters({"<s>"});
  TextBudget budget(8);
  const std::vector<ByteRange> ranges = {{0, 0}, {4, 4}, {8, 100}};
  EXPECT_THAT(*tokenizer->Encode("<s>a<s>", false, true, ranges, &budget), ElementsAre(28, 0, 28));
}

// Prompts of a quarter and of a whole million bytes, of which every second byte is a client's, take
// steps in proportion.
TEST(PlainRangesTest, StepsAreLinearInTheRanges) {
  for (const bool normalized : {false, true}) {
    const auto tokenizer = Letters({"<a>", "<a><a><a><a>"}, normalized);
    const auto steps_of = [&](size_t num_parts) {
      std::string text;
      std::vector<ByteRange> ranges;
      for (size_t i = 0; i < num_parts; ++i) {
        text += "<a>";
        ranges.push_back({text.size() - 1, text.size()});
      }
      TextBudget budget(text.size());
      EXPECT_TRUE(tokenizer->Encode(text, false, true, ranges, &budget).ok());
      return budget.num_steps();
    };
    EXPECT_LE(steps_of(100'000), 4 * steps_of(25'000) + 1000);
  }
}

// Random edits, against a mark for each byte.
TEST(RangeMapTest, EditedBytesAreInARangeIfOneOfThemWas) {
  std::mt19937 random(3);
  const auto below = [&](size_t n) { return random() % n; };
  for (int round = 0; round < 20'000; ++round) {
    const size_t size = 1 + below(20);
    std::vector<bool> marks(size);
    std::vector<ByteRange> ranges;
    for (size_t i = below(5); i < size;) {
      const size_t end = std::min(size, i + 1 + below(4));
      ranges.push_back({i, end});
      std::fill(marks.begin() + static_cast<ptrdiff_t>(i),
                marks.begin() + static_cast<ptrdiff_t>(end),
                true);
      i = end + 1 + below(4);
    }
    std::vector<TextEdit> edits;
    std::vector<bool> expected;
    for (size_t i = 0; i < size;) {
      if (below(3) != 0) {
        expected.push_back(marks[i++]);
        continue;
      }
      const TextEdit edit = {i, std::min(size, i + 1 + below(3)), below(4)};
      const bool is_marked = std::any_of(marks.begin() + static_cast<ptrdiff_t>(i),
                                         marks.begin() + static_cast<ptrdiff_t>(edit.end),
                                         [](bool mark) { return mark; });
      expected.insert(expected.end(), edit.new_size, is_marked);
      edits.push_back(edit);
      i = edit.end;
    }
    std::vector<bool> mapped(expected.size());
    for (const ByteRange& range : MapRanges(edits, ranges)) {
      ASSERT_LE(range.end, mapped.size());
      std::fill(mapped.begin() + static_cast<ptrdiff_t>(range.begin),
                mapped.begin() + static_cast<ptrdiff_t>(range.end),
                true);
    }
    ASSERT_EQ(mapped, expected) << round;
  }
}

}  // namespace
}  // namespace quire
