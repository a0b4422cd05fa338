// Compares tokens with those of Hugging Face `tokenizers` for the same strings: testdata/, written
// by make_tokenizer_golden.py.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

#include "common/json/json.h"
#include "scheduler/text/detokenizer.h"
#include "scheduler/text/tokenizer.h"

namespace quire {
namespace {

constexpr char kFolder[] = "tests/scheduler/text/testdata/";
constexpr int64_t kMaxFileBytes = 16 << 20;

Json ReadJson(const std::string& name) {
  absl::StatusOr<Json> json = ParseJsonFile(kFolder + name, kMaxFileBytes);
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? *json : Json();
}

std::string Join(const std::vector<TokenId>& ids) { return absl::StrJoin(ids, " "); }

std::vector<TokenId> Split(const std::string& text) {
  std::vector<TokenId> ids;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    TokenId id = 0;
    EXPECT_TRUE(absl::SimpleAtoi(word, &id));
    ids.push_back(id);
  }
  return ids;
}

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string name = GetParam();
    auto loaded = Tokenizer::Load(kFolder + name + ".tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = std::move(*loaded);
    strings_ = ReadJson("strings.json");
    golden_ = ReadJson(name + ".golden.json");
    ASSERT_GE(strings_.size(), 2000u);
    ASSERT_EQ(golden_["encode"].size(), strings_.size());
  }

  const std::string& String(size_t i) const { return strings_[i].get_ref<const std::string&>(); }

  std::unique_ptr<Tokenizer> tokenizer_;
  Json strings_;
  Json golden_;
};

TEST_P(TokenizerGoldenTest, EncodeGivesTheIdsOfHuggingFace) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    if (golden_["encode"][i].is_null()) {
      continue;  // newer Unicode than the pattern engine knows
    }
    auto ids = tokenizer_->Encode(String(i), /*add_special_tokens=*/true, /*parse_special=*/true);

    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Join(*ids), golden_["encode"][i].get<std::string>()) << "string " << strings_[i];
  }
}

TEST_P(TokenizerGoldenTest, SpecialTextIsPlainTextWhenNotParsed) {
  ASSERT_GT(golden_["plain"].size(), 200u);
  for (const auto& [index, expected] : golden_["plain"].items()) {
    size_t i = std::stoul(index);

    auto ids = tokenizer_->Encode(String(i), /*add_special_tokens=*/false, /*parse_special=*/false);

    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Join(*ids), expected.get<std::string>()) << "string " << strings_[i];
  }
}

TEST_P(TokenizerGoldenTest, DecodeGivesTheTextOfHuggingFace) {
  const Json& other = golden_["decode_where_not_the_text"];
  for (size_t i = 0; i < strings_.size(); ++i) {
    if (golden_["encode"][i].is_null()) {
      continue;
    }
    std::vector<TokenId> ids = Split(golden_["encode"][i].get<std::string>());
    auto it = other.find(std::to_string(i));
    std::string expected = it == other.end() ? String(i) : it->get<std::string>();

    std::string text = tokenizer_->Decode(ids, /*skip_special_tokens=*/true);

    EXPECT_EQ(text, expected) << "string " << strings_[i];
  }
}

TEST_P(TokenizerGoldenTest, DecodeOfIdsThatNoTextHasGivesTheTextOfHuggingFace) {
  for (const Json& pair : golden_["decode_ids"]) {
    std::string text = tokenizer_->Decode(Split(pair[0].get<std::string>()), true);

    EXPECT_EQ(text, pair[1].get<std::string>()) << "ids " << pair[0];
  }
}

TEST_P(TokenizerGoldenTest, DecodeKeepsSpecialTokensWhenAsked) {
  for (const Json& pair : golden_["decode_with_special"]) {
    std::string text = tokenizer_->Decode(Split(pair[0].get<std::string>()), false);

    EXPECT_EQ(text, pair[1].get<std::string>()) << "ids " << pair[0];
  }
}

TEST_P(TokenizerGoldenTest, StreamedPiecesJoinToTheWholeText) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    if (golden_["encode"][i].is_null()) {
      continue;
    }
    std::vector<TokenId> ids = Split(golden_["encode"][i].get<std::string>());
    Detokenizer detokenizer(tokenizer_.get(), {}, /*skip_special_tokens=*/true);

    std::string streamed;
    for (TokenId id : ids) {
      streamed += detokenizer.Push(id);
    }
    streamed += detokenizer.Flush();

    EXPECT_EQ(streamed, tokenizer_->Decode(ids, true)) << "string " << strings_[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         TokenizerGoldenTest,
                         testing::Values("gpt2",
                                         "opt",
                                         "roberta_like",
                                         "llama3",
                                         "qwen2",
                                         "cased",
                                         "bloom",
                                         "llama2",
                                         "mistral",
                                         "metaspace"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace quire
