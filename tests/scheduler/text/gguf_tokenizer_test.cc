// Tokenizers in GGUF files: tokens equal those of Hugging Face (testdata/, written by
// make_gguf_tokenizer_goldens.py), and files with one fault are refused with the name of the key.
#include "scheduler/text/gguf_tokenizer.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/model/gguf_file.h"
#include "scheduler/text/byte_alphabet.h"
#include "scheduler/text/byte_fallback.h"
#include "scheduler/text/spm_merges.h"
#include "scheduler/text/tokenizer.h"
#include "scheduler/text/utf8.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"

namespace quire {
namespace {

constexpr char kFolder[] = "tests/scheduler/text/testdata/";
constexpr char kPreKey[] = "tokenizer.ggml.pre";

Json ReadJson(const std::string& name) {
  absl::StatusOr<Json> json = ParseJsonFile(kFolder + name, 16 << 20);
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? *json : Json();
}

GgufValue StringValue(std::string_view text) {
  GgufValue value = {.type = GgufValueType::kString, .element_type = GgufValueType::kString};
  const auto bytes = std::as_bytes(std::span<const char>(text));
  value.bytes.assign(bytes.begin(), bytes.end());
  return value;
}

GgufValue BoolValue(bool is_true) {
  return {.type = GgufValueType::kBool,
          .element_type = GgufValueType::kBool,
          .bytes = {std::byte{is_true}}};
}

// Returns the file's tokenizer, as if the file had the given values.
std::unique_ptr<Tokenizer> LoadWith(const std::string& file,
                                    std::vector<std::pair<std::string, GgufValue>> changed) {
  absl::StatusOr<GgufFile> gguf = GgufFile::Open(kFolder + file);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  GgufMetadata metadata(file);
  for (auto& [key, value] : changed) {
    metadata.Add(key, std::move(value));
  }
  for (const auto& [key, value] : gguf->metadata().values()) {
    metadata.Add(key, GgufValue(value));
  }
  const absl::StatusOr<Json> json = TokenizerJsonFromGguf(metadata);
  EXPECT_TRUE(json.ok()) << json.status();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(*json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::vector<TokenId> Split(const std::string& text) {
  std::vector<TokenId> ids;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    TokenId id = 0;
    EXPECT_TRUE(absl::SimpleAtoi(word, &id));
    ids.push_back(id);
  }
  return ids;
}

std::string Encoded(const Tokenizer& tokenizer, const std::string& text, bool plain) {
  const auto ids = tokenizer.Encode(text, !plain, !plain);
  return ids.ok() ? absl::StrJoin(*ids, " ") : ids.status().ToString();
}

void Compare(const Tokenizer& tokenizer, const Json& golden) {
  const Json strings = ReadJson("strings.json");
  ASSERT_GT(golden["encode"].size(), 200u);
  for (const auto& [index, expected] : golden["encode"].items()) {
    const auto& text = strings[std::stoul(index)].get_ref<const std::string&>();
    EXPECT_EQ(Encoded(tokenizer, text, /*plain=*/false), expected.get<std::string>()) << text;
    const auto decoded = golden["decode"].find(index);
    EXPECT_EQ(tokenizer.Decode(Split(expected.get<std::string>()), true),
              decoded == golden["decode"].end() ? text : decoded->get<std::string>())
        << text;
  }
  for (const auto& [index, expected] : golden["plain"].items()) {
    const auto& text = strings[std::stoul(index)].get_ref<const std::string&>();
    EXPECT_EQ(Encoded(tokenizer, text, /*plain=*/true), expected.get<std::string>()) << text;
  }
}

class GgufPreTokenizerTest : public testing::TestWithParam<const char*> {};

TEST_P(GgufPreTokenizerTest, GivesTheTokensAndTextsOfHuggingFace) {
  const auto tokenizer = LoadWith("bpe.gguf", {{kPreKey, StringValue(GetParam())}});
  ASSERT_NE(tokenizer, nullptr);

  Compare(*tokenizer, ReadJson("bpe.golden.json")[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Names,
                         GgufPreTokenizerTest,
                         testing::Values("default",
                                         "gpt-2",
                                         "smollm",
                                         "llama-bpe",
                                         "smaug-bpe",
                                         "qwen2",
                                         "tekken",
                                         "deepseek-coder"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GgufTokenizerTest, SentencePieceGivesTheTokensAndTextsOfHuggingFace) {
  const auto tokenizer = Tokenizer::Load(std::string(kFolder) + "spm.gguf");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  Compare(**tokenizer, ReadJson("spm.golden.json")["spm"]);
}

TEST(GgufTokenizerTest, KeysDecideTheSpaceAndTheTokensAroundAText) {
  const auto plain = LoadWith("spm.gguf", {});
  const auto changed = LoadWith("spm.gguf",
                                {{"tokenizer.ggml.add_space_prefix", BoolValue(false)},
                                 {"tokenizer.ggml.add_bos_token", BoolValue(false)},
                                 {"tokenizer.ggml.add_eos_token", BoolValue(true)}});
  ASSERT_TRUE(plain != nullptr && changed != nullptr);

  // "Q" has no merge.
  EXPECT_EQ(Encoded(*plain, "Q", false),
            absl::StrCat("1 ", *plain->FindToken("\u2581"), " ", *plain->FindToken("Q")));
  EXPECT_EQ(Encoded(*changed, "Q", false), absl::StrCat(*plain->FindToken("Q"), " 2"));
  EXPECT_EQ(changed->Decode(std::vector<TokenId>{*plain->FindToken("\u2581")}, true), " ");
}

TEST(GgufTokenizerTest, TypesDecideWhichTokensAreSpecialAndWhichAreFoundInText) {
  const auto tokenizer = LoadWith("bpe.gguf", {});
  ASSERT_NE(tokenizer, nullptr);
  const TokenId control = *tokenizer->FindToken("<|im_end|>");
  const TokenId user = *tokenizer->FindToken("<Tool>");
  const TokenId unused = *tokenizer->FindToken("[PAD7]");

  EXPECT_TRUE(tokenizer->IsSpecial(control));
  EXPECT_FALSE(tokenizer->IsSpecial(user));
  EXPECT_FALSE(tokenizer->IsSpecial(unused));
  EXPECT_EQ(Encoded(*tokenizer, "<Tool>", /*plain=*/true), absl::StrCat(user));
  EXPECT_NE(Encoded(*tokenizer, "[PAD7]", /*plain=*/false), absl::StrCat(unused));
  EXPECT_FALSE(tokenizer->IsValidId(control + 1));  // the empty token
  EXPECT_TRUE(tokenizer->IsValidId(unused));
}

TEST(GgufTokenizerTest, TheDigestCoversTheTokenizerAlone) {
  const auto digest_of = [](const std::vector<std::pair<std::string, std::string>>& texts) {
    GgufMetadata metadata;
    for (const auto& [key, text] : texts) {
      metadata.Add(key, StringValue(text));
    }
    return DigestOfGgufTokenizer(metadata);
  };

  EXPECT_EQ(digest_of({{kPreKey, "qwen2"}, {"general.name", "a"}}),
            digest_of({{kPreKey, "qwen2"}, {"tokenizer.chat_template", "b"}}));
  EXPECT_NE(digest_of({{kPreKey, "qwen2"}}), digest_of({{kPreKey, "gpt-2"}}));
  const auto loaded = Tokenizer::Load(std::string(kFolder) + "bpe.gguf");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_NE((*loaded)->file_digest(), 0u);
}

TEST(SpmMergesTest, MergesFollowTheScoresAndBoundTheirWork) {
  const auto merges =
      SpmMerges({{"a", -9}, {"b", -9}, {"aa", -2}, {"ab", -1}, {"aab", -3}, {"aaaa", -3}});
  ASSERT_TRUE(merges.has_value());
  std::vector<std::string> pairs;
  for (const SpmMerge& merge : *merges) {
    pairs.push_back(absl::StrCat(ToAbsl(merge.left), "+", ToAbsl(merge.right)));
  }
  EXPECT_THAT(pairs, testing::ElementsAre("a+b", "a+a", "aa+aa", "aa+b", "a+ab"));

  const std::string huge(1 << 15, 'a');
  EXPECT_TRUE(SpmMerges({{huge, 0}}).has_value());
  EXPECT_FALSE(SpmMerges({{huge, 0}, {"b", 0}}).has_value());
}

// Files with one fault.

std::vector<std::string> Alphabet() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    AppendUtf8(ByteToCharacter(static_cast<uint8_t>(byte)), &tokens.emplace_back());
  }
  return tokens;
}

std::vector<std::string> SpmTokens() {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(ByteTokenText(static_cast<uint8_t>(byte)));
  }
  return tokens;
}

void AddTokens(GgufBytes& file, const std::vector<std::string>& tokens) {
  file.AddArray<std::string_view>("tokenizer.ggml.tokens",
                                  GgufValueType::kString,
                                  std::vector<std::string_view>(tokens.begin(), tokens.end()));
}

void AddMerges(GgufBytes& file, const std::vector<std::string_view>& merges) {
  file.AddArray<std::string_view>("tokenizer.ggml.merges", GgufValueType::kString, merges);
}

void AddScores(GgufBytes& file, size_t num_tokens) {
  file.AddArray<float>(
      "tokenizer.ggml.scores", GgufValueType::kFloat32, std::vector<float>(num_tokens, -1.0F));
}

void AddTypes(GgufBytes& file, const std::vector<int32_t>& types) {
  file.AddArray<int32_t>("tokenizer.ggml.token_type", GgufValueType::kInt32, types);
}

void RemoveKey(GgufBytes& file, std::string_view name) {
  std::erase_if(file.keys, [&](const GgufBytes::Key& key) { return key.name == name; });
}

GgufBytes Bpe(std::vector<std::string> more_tokens = {}) {
  GgufBytes file;
  std::vector<std::string> tokens = Alphabet();
  tokens.insert(tokens.end(), more_tokens.begin(), more_tokens.end());
  file.Add("tokenizer.ggml.model", "gpt2");
  file.Add(kPreKey, "gpt-2");
  AddTokens(file, tokens);
  AddMerges(file, {});
  return file;
}

GgufBytes Spm(std::vector<std::string> more_tokens = {}) {
  GgufBytes file;
  std::vector<std::string> tokens = SpmTokens();
  tokens.insert(tokens.end(), more_tokens.begin(), more_tokens.end());
  file.Add("tokenizer.ggml.model", "llama");
  AddTokens(file, tokens);
  AddScores(file, tokens.size());
  return file;
}

absl::Status LoadStatus(const std::string& bytes) {
  const GgufDir dir;
  dir.Write("m.gguf", bytes);
  return Tokenizer::Load(dir.path("m.gguf")).status();
}

TEST(GgufTokenizerTest, FilesWithoutAFaultAreLoaded) {
  EXPECT_EQ(LoadStatus(Bpe().File()), absl::OkStatus());
  EXPECT_EQ(LoadStatus(Spm().File()), absl::OkStatus());
}

struct Fault {
  const char* name;
  std::function<GgufBytes()> file;
  std::string message;  // after "load: m.gguf: "
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

// Returns a file with a key in place of one, or as well.
std::function<GgufBytes()> Changed(GgufBytes file,
                                   std::string_view key,
                                   const std::function<void(GgufBytes&)>& add) {
  RemoveKey(file, key);
  if (add != nullptr) {
    add(file);
  }
  return [file = std::move(file)] { return file; };
}

std::vector<Fault> Faults() {
  const std::string merges = "tokenizer.ggml.merges";
  const std::string tokens = "tokenizer.ggml.tokens";
  const std::string scores = "tokenizer.ggml.scores";
  const std::string types = "tokenizer.ggml.token_type";
  std::vector<std::string> no_blank = Alphabet();
  std::erase(no_blank, "\u0120");
  std::vector<std::string> no_byte = SpmTokens();
  std::erase(no_byte, "<0x7F>");
  return {
      {"NoModel",
       Changed(Bpe(), "tokenizer.ggml.model", nullptr),
       "tokenizer.ggml.model: is missing"},
      {"UnknownModel",
       Changed(Bpe(),
               "tokenizer.ggml.model",
               [](GgufBytes& file) { file.Add("tokenizer.ggml.model", "t5"); }),
       "tokenizer.ggml.model: must be one of gpt2, llama (got t5)"},
      {"ModelOfAnotherType",
       Changed(Bpe(),
               "tokenizer.ggml.model",
               [](GgufBytes& file) { file.AddUint32("tokenizer.ggml.model", 2); }),
       "tokenizer.ggml.model: must be a string (got uint32)"},
      {"NoTokens", Changed(Bpe(), tokens, nullptr), tokens + ": is missing"},
      {"TokensOfAnotherType",
       Changed(Bpe(),
               tokens,
               [&](GgufBytes& file) {
                 file.AddArray<int32_t>(tokens, GgufValueType::kInt32, {1, 2});
               }),
       tokens + ": must be an array of strings (got array of int32)"},
      {"NoTokenAtAll",
       Changed(Bpe(), tokens, [](GgufBytes& file) { AddTokens(file, {}); }),
       tokens + ": has no token for the byte 32"},
      {"NoBlank",
       Changed(Bpe(), tokens, [&](GgufBytes& file) { AddTokens(file, no_blank); }),
       tokens + ": has no token for the byte 32"},
      {"ControlTokenForALetter",
       Changed(Bpe(),
               types,
               [](GgufBytes& file) {
                 std::vector<int32_t> each(256, 1);
                 each['A'] = 3;
                 AddTypes(file, each);
               }),
       tokens + ": has no token for the byte 65"},
      {"NoByteToken",
       Changed(Spm(), tokens, [&](GgufBytes& file) { AddTokens(file, no_byte); }),
       tokens + ": has no token for the byte 127"},
      {"TooManyTokens",
       [] { return Bpe(std::vector<std::string>(3'999'745)); },
       tokens + ": must have at most 4000000 elements (got 4000001)"},
      {"SameText",
       [] {
         return Bpe({"aa", "bb", "aa"});
       },
       tokens + ": tokens 256 and 258 have the same text"},
      {"NoUtf8", [] { return Bpe({"a\xFF"}); }, tokens + ": token 256 is not valid UTF-8"},
      {"LongToken",
       [] { return Bpe({std::string(4097, 'a')}); },
       tokens + ": token 256 must have at most 4096 bytes (got 4097)"},
      {"LongControlToken",
       Changed(Bpe({std::string(257, 'a')}),
               types,
               [](GgufBytes& file) {
                 std::vector<int32_t> each(257, 1);
                 each[256] = 3;
                 AddTypes(file, each);
               }),
       tokens + ": token 256 must have at most 256 bytes (got 257)"},
      {"TypesOfOtherTokens",
       Changed(Bpe(), types, [](GgufBytes& file) { AddTypes(file, {1}); }),
       types + ": must have an element for each token (got 1 for 256)"},
      {"UnknownType",
       Changed(Bpe(), types, [](GgufBytes& file) { AddTypes(file, std::vector<int32_t>(256, 7)); }),
       types + ": element 0 must be in [0, 6] (got 7)"},
      {"NoMerges", Changed(Bpe(), merges, nullptr), merges + ": is missing"},
      {"MergeOfOneToken",
       Changed(Bpe(), merges, [](GgufBytes& file) { AddMerges(file, {"ab"}); }),
       merges + ": merge 0 must be two tokens separated by a space"},
      {"EmptyMerge",
       Changed(Bpe(), merges, [](GgufBytes& file) { AddMerges(file, {""}); }),
       merges + ": merge 0 must be two tokens separated by a space"},
      {"MergeWithoutItsResult",
       Changed(Bpe(), merges, [](GgufBytes& file) { AddMerges(file, {"a b"}); }),
       merges + ": merge 0 names a token that is not in the vocabulary (got \"ab\")"},
      {"MergeOfAnUnknownToken",
       Changed(Bpe({"ab", "abc"}),
               merges,
               [](GgufBytes& file) {
                 AddMerges(file, {"a b", "a bc"});
               }),
       merges + ": merge 1 names a token that is not in the vocabulary (got \"bc\")"},
      {"MergeWithAnEmptyPart",
       Changed(Bpe(), merges, [](GgufBytes& file) { AddMerges(file, {"a "}); }),
       merges + ": merge 0 names a token that is not in the vocabulary (got \"\")"},
      {"UnknownPre",
       Changed(Bpe(), kPreKey, [](GgufBytes& file) { file.Add(kPreKey, "gpt-4o"); }),
       "tokenizer.ggml.pre: must be one of default, gpt-2, phi-2, mpt, olmo, smollm, starcoder, "
       "refact, command-r, codeshell, minerva-7b, llama-bpe, llama3, llama-v3, falcon3, pixtral, "
       "midm-2.0, smaug-bpe, dbrx, qwen2, deepseek-r1-qwen, megrez, tekken, deepseek-coder (got "
       "gpt-4o)"},
      {"BosOutsideTheVocabulary",
       Changed(
           Bpe(), "", [](GgufBytes& file) { file.AddUint32("tokenizer.ggml.bos_token_id", 256); }),
       "tokenizer.ggml.bos_token_id: must be in [0, 255] (got 256)"},
      {"NoEosToAdd",
       Changed(Bpe(),
               "",
               [](GgufBytes& file) {
                 file.Add("tokenizer.ggml.add_eos_token", GgufValueType::kBool, uint8_t{1});
               }),
       "tokenizer.ggml.add_eos_token: is true, but the file has no eos token"},
      {"NoScores", Changed(Spm(), scores, nullptr), scores + ": is missing"},
      {"ScoresOfOtherTokens",
       Changed(Spm(), scores, [](GgufBytes& file) { AddScores(file, 258); }),
       scores + ": must have an element for each token (got 258 for 259)"},
      {"ScoreThatIsNoNumber",
       Changed(Spm(),
               scores,
               [&](GgufBytes& file) {
                 std::vector<float> each(259, 0.0F);
                 each[5] = __builtin_nanf("");
                 file.AddArray<float>(scores, GgufValueType::kFloat32, each);
               }),
       scores + ": element 5 must be in [-1e+30, 1e+30] (got nan)"},
      {"UnknownTokenWithoutText",
       Changed(Spm({""}),
               "",
               [](GgufBytes& file) { file.AddUint32("tokenizer.ggml.unknown_token_id", 259); }),
       "tokenizer.ggml.unknown_token_id: is no token"},
      {"TokensTooLongToMerge",
       [] {
         std::vector<std::string> long_tokens;
         for (int i = 0; i < 70; ++i) {
           long_tokens.push_back(std::string(4095, 'a') + static_cast<char>('0' + i));
         }
         return Spm(long_tokens);
       },
       tokens + ": the tokens are too long, or have too many merges"},
  };
}

class FaultyTokenizerTest : public testing::TestWithParam<Fault> {};

TEST_P(FaultyTokenizerTest, IsRefusedWithTheNameOfTheKey) {
  const absl::Status status = LoadStatus(GetParam().file().File());

  EXPECT_EQ(status.message(), "load: m.gguf: " + GetParam().message);
  EXPECT_EQ(ReasonOf(status), "MODEL_FILE");
}

INSTANTIATE_TEST_SUITE_P(Faults,
                         FaultyTokenizerTest,
                         testing::ValuesIn(Faults()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(GgufTokenizerTest, AFileCutAnywhereIsRefused) {
  const GgufBytes file = Bpe({"ab"});
  const std::string whole = file.File();
  for (size_t size = 0; size < file.Header().size(); size += 7) {
    EXPECT_FALSE(LoadStatus(whole.substr(0, size)).ok()) << size;
  }
}

TEST(GgufTokenizerTest, AHugeNumberOfTokensIsRefusedWithoutMemory) {
  GgufBytes file = Bpe();
  RemoveKey(file, "tokenizer.ggml.tokens");
  file.keys.push_back({"tokenizer.ggml.tokens",
                       static_cast<uint32_t>(GgufValueType::kArray),
                       LittleEndian(static_cast<uint32_t>(GgufValueType::kString)) +
                           LittleEndian(uint64_t{1} << 60)});

  EXPECT_THAT(std::string(LoadStatus(file.File()).message()),
              testing::HasSubstr("tokenizer.ggml.tokens"));
}

}  // namespace
}  // namespace quire
