#include "scheduler/text/tokenizer.h"

#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/string_view.h"
#include "scheduler/text/json_node.h"
#include "scheduler/text/utf8.h"

#include <sys/stat.h>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "tests/scheduler/text/testdata/";
constexpr char kBundledModel[] = "deploy/model/tokenizer.json";

// A small byte-level tokenizer: "ab" and "abc" are tokens, "<s>" is special, id 7 has no token.
Json ByteLevelJson() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 8, "content": "<s>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "<": 5, "s": 6},
              "merges": ["a b", "ab c"]}})");
}

Json SentencePieceJson() {
  return Json::parse(R"({
    "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": {"<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "▁a": 4, "b": 5},
              "merges": [["▁", "a"]]}})");
}

std::unique_ptr<Tokenizer> FromJson(const Json& json) {
  auto tokenizer = Tokenizer::FromJson(json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::vector<TokenId> Encode(const Tokenizer& tokenizer,
                            std::string_view text,
                            bool add_special_tokens = false,
                            bool parse_special = false) {
  auto ids = tokenizer.Encode(text, add_special_tokens, parse_special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

TEST(TokenizerTest, EncodeMergesAndAddsTheBeginningToken) {
  auto tokenizer = FromJson(ByteLevelJson());

  EXPECT_THAT(Encode(*tokenizer, "abcab"), ElementsAre(4, 3));
  EXPECT_THAT(Encode(*tokenizer, "abcab", /*add_special_tokens=*/true), ElementsAre(8, 4, 3));
  EXPECT_THAT(Encode(*tokenizer, ""), IsEmpty());
  EXPECT_THAT(Encode(*tokenizer, "", /*add_special_tokens=*/true), ElementsAre(8));
}

TEST(TokenizerTest, SpecialTextIsASpecialTokenOnlyWhenParsed) {
  auto tokenizer = FromJson(ByteLevelJson());

  EXPECT_THAT(Encode(*tokenizer, "a<s>", false, /*parse_special=*/true), ElementsAre(0, 8));
  EXPECT_THAT(Encode(*tokenizer, "a<s", false, /*parse_special=*/true), ElementsAre(0, 5, 6));
  EXPECT_THAT(Encode(*tokenizer, "a<s>", false, /*parse_special=*/false), ElementsAre(0, 5, 6));
}

TEST(TokenizerTest, IdsOfGapsAndOutsideAreNotValid) {
  auto tokenizer = FromJson(ByteLevelJson());

  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_TRUE(tokenizer->IsValidId(0));
  EXPECT_TRUE(tokenizer->IsValidId(8));
  for (TokenId id :
       {7, -1, 9, std::numeric_limits<TokenId>::max(), std::numeric_limits<TokenId>::min()}) {
    EXPECT_FALSE(tokenizer->IsValidId(id)) << id;
    EXPECT_FALSE(tokenizer->IsSpecial(id)) << id;
    EXPECT_EQ(tokenizer->TokenText(id), "") << id;
    EXPECT_EQ(tokenizer->TokenBytes(id), "") << id;
  }
  EXPECT_TRUE(tokenizer->IsSpecial(8));
  EXPECT_FALSE(tokenizer->IsSpecial(0));
}

TEST(TokenizerTest, TokenTextAndBytesAreToldApart) {
  auto tokenizer = FromJson(SentencePieceJson());

  EXPECT_EQ(tokenizer->TokenText(4), "▁a");
  EXPECT_EQ(tokenizer->TokenBytes(4), " a");
  EXPECT_EQ(tokenizer->TokenText(1), "<0x41>");
  EXPECT_EQ(tokenizer->TokenBytes(1), "A");
  EXPECT_EQ(tokenizer->FindToken("▁a"), 4);
  EXPECT_EQ(tokenizer->FindToken("nothing"), std::nullopt);
}

TEST(TokenizerTest, UnknownCharactersFallBackToBytesOrTheUnknownToken) {
  auto tokenizer = FromJson(SentencePieceJson());

  EXPECT_THAT(Encode(*tokenizer, "aA"), ElementsAre(4, 1));
  EXPECT_THAT(Encode(*tokenizer, "aZZb"), ElementsAre(4, 0, 5));
}

TEST(TokenizerTest, TextThatIsNotUtf8IsRefused) {
  auto tokenizer = FromJson(ByteLevelJson());
  for (std::string_view text :
       {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "a\xE2\x82", "\xFF"}) {
    auto ids = tokenizer->Encode(text, true, true);

    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(ids.status()), "INVALID_UTF8");
  }
}

TEST(TokenizerTest, MissingFileIsNotFound) {
  EXPECT_EQ(Tokenizer::Load("no/such/file.json").status().code(), absl::StatusCode::kNotFound);
}

// ---------------------------------------------------------------------------- malformed files

struct Fault {
  const char* name;
  bool byte_level;
  std::function<void(Json&)> damage;
  const char* message;  // part of the error
};

Json AddedJson(const Json& id, const std::string& content) {
  return {{"id", id},
          {"content", content},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", true}};
}

Json DeepSequence(const char* list_key, int depth) {
  Json json = {{"type", "NFC"}};
  for (int i = 0; i < depth; ++i) {
    Json outer = {{"type", "Sequence"}};
    outer[list_key].push_back(std::move(json));
    json = std::move(outer);
  }
  return json;
}

std::vector<Fault> Faults() {
  return {
      {"NoModel", true, [](Json& j) { j.erase("model"); }, "model: is missing"},
      {"ModelIsANumber", true, [](Json& j) { j["model"] = 3; }, "model: must be an object"},
      {"NoVocab", true, [](Json& j) { j["model"].erase("vocab"); }, "model.vocab: is missing"},
      {"EmptyVocab",
       true,
       [](Json& j) { j["model"]["vocab"] = Json::object(); },
       "must not be empty"},
      {"VocabIsAnArray",
       true,
       [](Json& j) { j["model"]["vocab"] = Json::array(); },
       "must be an object"},
      {"NegativeId", true, [](Json& j) { j["model"]["vocab"]["a"] = -1; }, "every id"},
      {"FractionalId", true, [](Json& j) { j["model"]["vocab"]["a"] = 1.5; }, "every id"},
      {"IdIsText", true, [](Json& j) { j["model"]["vocab"]["a"] = "0"; }, "every id"},
      {"IdPast31Bits", true, [](Json& j) { j["model"]["vocab"]["a"] = 2147483647; }, "every id"},
      {"IdGap", true, [](Json& j) { j["model"]["vocab"]["a"] = 100; }, "below twice the number"},
      {"HugeIdGap",
       true,
       [](Json& j) { j["model"]["vocab"]["a"] = 2147483646; },
       "below twice the number"},
      {"DuplicateId",
       true,
       [](Json& j) { j["model"]["vocab"]["a"] = 1; },
       "two tokens have the id 1"},
      {"NoMerges", true, [](Json& j) { j["model"].erase("merges"); }, "model.merges: is missing"},
      {"MergesAreText", true, [](Json& j) { j["model"]["merges"] = "a b"; }, "must be an array"},
      {"MergeOfUnknownToken",
       true,
       [](Json& j) { j["model"]["merges"][0] = "a q"; },
       "not in the vocabulary"},
      {"MergeIntoUnknownToken",
       true,
       [](Json& j) { j["model"]["merges"][0] = "b a"; },
       "not in the vocabulary"},
      {"MergeOfOneToken", true, [](Json& j) { j["model"]["merges"][0] = "ab"; }, "two tokens"},
      {"MergeOfThreeTokens",
       true,
       [](Json& j) { j["model"]["merges"][0] = "a b c"; },
       "two tokens"},
      {"MergeOfNothing",
       true,
       [](Json& j) {
         j["model"]["merges"][0] = Json::array({"", "a"});
       },
       "not in the vocabulary"},
      {"MergeIsANumber",
       true,
       [](Json& j) { j["model"]["merges"][0] = 7; },
       "must be a string or an array"},
      {"MergeArrayOfThree",
       true,
       [](Json& j) {
         j["model"]["merges"][0] = {"a", "b", "c"};
       },
       "must be a string or an array"},
      {"ByteTokenTooLarge",
       false,
       [](Json& j) { j["model"]["vocab"]["<0x100>"] = 6; },
       "byte tokens must be"},
      {"ByteTokenNegative",
       false,
       [](Json& j) { j["model"]["vocab"]["<0x-1>"] = 6; },
       "byte tokens must be"},
      {"ByteTokenEmpty",
       false,
       [](Json& j) { j["model"]["vocab"]["<0x>"] = 6; },
       "byte tokens must be"},
      {"UnknownModel",
       true,
       [](Json& j) { j["model"]["type"] = "Unigram"; },
       "type of model is not supported"},
      {"Dropout", true, [](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout"},
      {"EndOfWordSuffix",
       true,
       [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
       "end_of_word_suffix"},
      {"UnknownModelOption", true, [](Json& j) { j["model"]["surprise"] = 1; }, "surprise"},
      {"UnkTokenMissing", false, [](Json& j) { j["model"]["unk_token"] = "<none>"; }, "unk_token"},
      {"FlagIsANumber",
       false,
       [](Json& j) { j["model"]["fuse_unk"] = 1; },
       "must be true or false"},
      {"AddedIdNegative", true, [](Json& j) { j["added_tokens"][0]["id"] = -5; }, "id must be in"},
      {"AddedIdHuge",
       true,
       [](Json& j) { j["added_tokens"][0]["id"] = 18446744073709551615ull; },
       "must be an integer"},
      {"AddedIdGap",
       true,
       [](Json& j) { j["added_tokens"][0]["id"] = 1000; },
       "below twice the number"},
      {"AddedIdOfAnother", true, [](Json& j) { j["added_tokens"][0]["id"] = 3; }, "disagrees"},
      {"AddedTextOfAnother",
       true,
       [](Json& j) { j["added_tokens"][0]["content"] = "ab"; },
       "disagrees"},
      {"AddedTwice",
       true,
       [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); },
       "two tokens have the id 8"},
      {"AddedTextTwice",
       true,
       [](Json& j) { j["added_tokens"].push_back(AddedJson(9, "<s>")); },
       "disagrees"},
      {"AddedEmpty",
       true,
       [](Json& j) { j["added_tokens"].push_back(AddedJson(9, "")); },
       "content must have"},
      {"AddedTooLong",
       true,
       [](Json& j) { j["added_tokens"].push_back(AddedJson(9, std::string(257, 'x'))); },
       "content must have"},
      {"AddedFlagMissing",
       true,
       [](Json& j) { j["added_tokens"][0].erase("lstrip"); },
       "lstrip: is missing"},
      {"AddedIsNull", true, [](Json& j) { j["added_tokens"][0] = nullptr; }, "must be an object"},
      {"TemplateIdOutOfRange",
       true,
       [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 9; },
       "must be the id of a token"},
      {"TemplateIdOfAGap",
       true,
       [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 7; },
       "must be the id of a token"},
      {"TemplateTokenUnknown",
       true,
       [](Json& j) { j["post_processor"]["special_tokens"] = Json::object(); },
       "<s>: is missing"},
      {"TemplateWithoutText",
       true,
       [](Json& j) { j["post_processor"]["single"].erase(1); },
       "sequence A once"},
      {"UnknownPostProcessor",
       true,
       [](Json& j) {
         j["post_processor"] = {{"type", "Foo"}};
       },
       "not supported"},
      {"UnknownPreTokenizer",
       true,
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
       },
       "not supported"},
      {"UnknownPreTokenizerOption",
       true,
       [](Json& j) { j["pre_tokenizer"]["mood"] = "good"; },
       "mood"},
      {"StepAfterByteLevel",
       true,
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", {j["pre_tokenizer"], {{"type", "Whitespace"}}}}};
       },
       "must not come after ByteLevel"},
      {"BadPattern",
       true,
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"Regex", "("}}},
                               {"behavior", "Isolated"},
                               {"invert", false}};
       },
       "does not compile"},
      {"EmptyPattern",
       true,
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"Regex", "a*"}}},
                               {"behavior", "Isolated"},
                               {"invert", false}};
       },
       "empty string"},
      {"UnknownBehavior",
       true,
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"String", "a"}}},
                               {"behavior", "Wild"},
                               {"invert", false}};
       },
       "behavior must be Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext"},
      {"UnknownNormalizer",
       true,
       [](Json& j) {
         j["normalizer"] = {{"type", "BertNormalizer"}};
       },
       "not supported"},
      {"NormalizerWithoutType",
       true,
       [](Json& j) { j["normalizer"] = Json::object(); },
       "type: is missing"},
      {"NoDecoder", true, [](Json& j) { j.erase("decoder"); }, "decoder: must not be null"},
      {"UnknownDecoder",
       true,
       [](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "not supported"},
      {"DecoderStripsTheEnd",
       false,
       [](Json& j) { j["decoder"]["decoders"][3]["stop"] = 1; },
       "stop must be 0"},
      {"DecoderOrder",
       false,
       [](Json& j) { std::swap(j["decoder"]["decoders"][0], j["decoder"]["decoders"][3]); },
       "not supported at this place"},
      {"UnknownVersion", true, [](Json& j) { j["version"] = "2.0"; }, "version"},
      {"UnknownMember", true, [](Json& j) { j["extra"] = 1; }, "extra"},
  };
}

TEST(TokenizerTest, MalformedFileIsRefusedWithTheRuleItBreaks) {
  for (const Fault& fault : Faults()) {
    Json json = fault.byte_level ? ByteLevelJson() : SentencePieceJson();
    fault.damage(json);

    auto tokenizer = Tokenizer::FromJson(json);

    ASSERT_FALSE(tokenizer.ok()) << fault.name;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << fault.name;
    EXPECT_EQ(ReasonOf(tokenizer.status()), "TOKENIZER") << fault.name;
    EXPECT_THAT(std::string(tokenizer.status().message()),
                testing::AllOf(HasSubstr(fault.message), testing::Not(testing::StartsWith(":"))))
        << fault.name;
  }
}

TEST(TokenizerTest, DeepNestingIsRefusedWithoutRecursion) {
  Json json = ByteLevelJson();
  json["normalizer"] = DeepSequence("normalizers", 200000);

  auto tokenizer = Tokenizer::FromJson(json);

  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("nested deeper than 16"));
}

TEST(TokenizerTest, ErrorOfAFileStartsWithItsPath) {
  std::string path = absl::StrCat(testing::TempDir(), "/broken_tokenizer.json");
  FILE* file = std::fopen(path.c_str(), "w");
  std::fputs(
      R"({"model": {"vocab": {"a": 0}, "merges": ["a b"]}, "decoder": {"type": "ByteLevel"}})",
      file);
  std::fclose(file);

  absl::Status status = Tokenizer::Load(path).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::StartsWith(path));
}

// Changes a few bytes of a real file, or whole values of it, in every way. The changed file is
// refused, or its tokenizer works.
class TokenizerMutationTest : public testing::TestWithParam<const char*> {};

void UseAnyway(const Tokenizer& tokenizer, std::mt19937* random) {
  auto ids = tokenizer.Encode("Hello <s> wörld 123\n\n  don't ▁ 中文 👍", true, true);
  if (!ids.ok()) {
    return;
  }
  for (TokenId& id : *ids) {
    ASSERT_TRUE(tokenizer.IsValidId(id));
    if ((*random)() % 8 == 0) {
      id = static_cast<TokenId>((*random)());
    }
  }
  ASSERT_TRUE(IsValidUtf8(tokenizer.Decode(*ids, false)));
}

void MutateBytes(std::string* text, std::mt19937* random) {
  static constexpr std::string_view kBytes = "{}[]\",:0123456789-.eE\\ntu<x>\xFF\x80\xE2 ";
  for (size_t i = 1 + (*random)() % 3; i > 0; --i) {
    size_t at = (*random)() % text->size();
    switch ((*random)() % 3) {
      case 0:
        (*text)[at] = kBytes[(*random)() % kBytes.size()];
        break;
      case 1:
        text->erase(at, 1 + (*random)() % 20);
        break;
      default:
        text->insert(at, text->substr((*random)() % text->size(), 1 + (*random)() % 20));
    }
  }
}

// Replaces one value somewhere in the tree.
void MutateValue(Json* json, std::mt19937* random) {
  Json* at = json;
  while (at->is_structured() && !at->empty() && (at == json || (*random)() % 6 != 0)) {
    auto child = at->begin();
    std::advance(child, static_cast<std::ptrdiff_t>((*random)() % at->size()));
    at = &*child;
  }
  static const std::vector<Json> values = {
      nullptr,       true,          false,       0,          -1,      1,           5,
      300,           2147483647,    4294967296,  1e300,      "",      "a",         "▁",
      "<s>",         "NFC",         "ByteLevel", "Sequence", "Split", "Metaspace", "Isolated",
      Json::array(), Json::object()};
  *at = values[(*random)() % values.size()];
}

TEST_P(TokenizerMutationTest, MutatedFileIsRefusedOrWorks) {
  auto text = ReadFile(absl::StrCat(kFolder, GetParam(), ".tokenizer.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  Json original = Json::parse(*text);
  std::mt19937 random(23);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    absl::StatusOr<Json> json = original;
    if (round % 3 == 0) {
      std::string mutated = *text;
      MutateBytes(&mutated, &random);
      json = ParseJson(mutated);
    } else {
      MutateValue(&*json, &random);
    }
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        json.ok() ? Tokenizer::FromJson(*json) : json.status();

    ++(tokenizer.ok() ? accepted : refused);
    if (tokenizer.ok()) {
      UseAnyway(**tokenizer, &random);
    } else {
      EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }

  EXPECT_GT(refused, 50);
  EXPECT_GT(accepted, 5);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    TokenizerMutationTest,
    testing::Values("llama3", "cased", "llama2", "mistral", "metaspace", "roberta_like"),
    [](const auto& test) { return std::string(test.param); });

// ------------------------------------------------------------------------------ bundled model

TEST(BundledTokenizerTest, TextsSurviveEncodingAndDecoding) {
  struct stat info = {};
  if (::stat(kBundledModel, &info) != 0) {
    GTEST_SKIP() << kBundledModel << " is not there";
  }
  auto tokenizer = Tokenizer::Load(kBundledModel);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  auto strings = ParseJsonFile(absl::StrCat(kFolder, "strings.json"), 1 << 20);
  ASSERT_TRUE(strings.ok()) << strings.status();
  for (const Json& string : *strings) {
    const std::string& text = string.get_ref<const std::string&>();

    std::vector<TokenId> ids = Encode(**tokenizer, text);

    EXPECT_EQ((*tokenizer)->Decode(ids, true), text);
  }
}

}  // namespace
}  // namespace quire
