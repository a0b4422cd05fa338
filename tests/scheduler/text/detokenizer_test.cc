#include "scheduler/text/detokenizer.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/base/string_view.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

constexpr char kFolder[] = "tests/scheduler/text/testdata/";

std::unique_ptr<Tokenizer> Load(const std::string& name) {
  auto tokenizer = Tokenizer::Load(absl::StrCat(kFolder, name, ".tokenizer.json"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

std::vector<TokenId> Encode(const Tokenizer& tokenizer, std::string_view text, bool special) {
  auto ids = tokenizer.Encode(text, special, /*parse_special=*/true);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

TokenId IdOf(const Tokenizer& tokenizer, std::string_view token) {
  auto id = tokenizer.FindToken(token);
  EXPECT_TRUE(id.has_value()) << token;
  return id.value_or(-1);
}

// The token of one byte.
TokenId ByteId(const Tokenizer& tokenizer, uint8_t byte) {
  std::string text(1, static_cast<char>(byte));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.TokenBytes(id) == text && tokenizer.TokenText(id).size() != 1) {
      return id;
    }
  }
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.TokenBytes(id) == text) {
      return id;
    }
  }
  ADD_FAILURE() << "no token for byte " << int{byte};
  return -1;
}

std::string StreamAll(Detokenizer detokenizer, const std::vector<TokenId>& ids) {
  std::string text;
  for (TokenId id : ids) {
    std::string piece = detokenizer.Push(id);
    EXPECT_TRUE(IsValidUtf8(piece));
    text += piece;
  }
  return text + detokenizer.Flush();
}

TEST(DetokenizerTest, UnfinishedCharacterWaitsForItsLastByte) {
  auto tokenizer = Load("gpt2");
  Detokenizer detokenizer(tokenizer.get(), {}, true);

  EXPECT_EQ(detokenizer.Push(ByteId(*tokenizer, 0xF0)), "");
  EXPECT_EQ(detokenizer.Push(ByteId(*tokenizer, 0x9F)), "");
  EXPECT_EQ(detokenizer.Push(ByteId(*tokenizer, 0x98)), "");
  EXPECT_EQ(detokenizer.Push(ByteId(*tokenizer, 0x80)), "😀");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(DetokenizerTest, UnfinishedCharacterBecomesOneReplacementInByteLevelText) {
  auto tokenizer = Load("gpt2");
  Detokenizer detokenizer(tokenizer.get(), {}, true);
  detokenizer.Push(ByteId(*tokenizer, 0xE2));
  detokenizer.Push(ByteId(*tokenizer, 0x82));

  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
}

TEST(DetokenizerTest, EveryLooseByteBecomesAReplacementInSentencePieceText) {
  auto tokenizer = Load("llama2");
  std::vector<TokenId> ids = {
      IdOf(*tokenizer, "<0xE2>"), IdOf(*tokenizer, "<0x82>"), IdOf(*tokenizer, "a")};

  EXPECT_EQ(StreamAll(Detokenizer(tokenizer.get(), {}, true), ids), "\uFFFD\uFFFDa");
}

TEST(DetokenizerTest, CompleteCharacterAmongBrokenBytesIsKept) {
  auto tokenizer = Load("llama2");
  std::vector<TokenId> ids = {
      IdOf(*tokenizer, "<0xC3>"), IdOf(*tokenizer, "<0xA9>"), IdOf(*tokenizer, "<0xFF>")};

  EXPECT_EQ(StreamAll(Detokenizer(tokenizer.get(), {}, true), ids), "é\uFFFD");
  EXPECT_EQ(tokenizer->Decode(ids, true), "é\uFFFD");
}

TEST(DetokenizerTest, ContinuationKeepsItsLeadingSpace) {
  for (const char* name : {"llama2", "mistral", "metaspace", "gpt2"}) {
    auto tokenizer = Load(name);
    std::vector<TokenId> prompt = Encode(*tokenizer, "The list", true);
    std::vector<TokenId> whole = Encode(*tokenizer, "The list that waits", true);
    if (std::string(name) == "metaspace") {  // its post-processor ends the text
      prompt.pop_back();
      whole.pop_back();
    }
    std::vector<TokenId> output(whole.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                                whole.end());

    std::string text = StreamAll(Detokenizer(tokenizer.get(), prompt, true), output);

    EXPECT_EQ(text, " that waits") << name;
  }
}

TEST(DetokenizerTest, FirstWordHasNoSpaceAfterAPromptOfSpecialTokensOnly) {
  for (const char* name : {"llama2", "mistral", "metaspace"}) {
    auto tokenizer = Load(name);
    std::vector<TokenId> prompt = {IdOf(*tokenizer, "<s>")};
    std::vector<TokenId> output = Encode(*tokenizer, "that waits", false);

    std::string text = StreamAll(Detokenizer(tokenizer.get(), prompt, true), output);

    EXPECT_EQ(text, "that waits") << name;
  }
}

TEST(DetokenizerTest, OnlyOneLeadingSpaceIsStripped) {
  auto tokenizer = Load("llama2");
  std::vector<TokenId> ids = {IdOf(*tokenizer, "▁"), IdOf(*tokenizer, "▁▁"), IdOf(*tokenizer, "a")};

  EXPECT_EQ(StreamAll(Detokenizer(tokenizer.get(), {}, true), ids), "  a");
}

TEST(DetokenizerTest, OutputFinishesTheCharacterThatThePromptBegan) {
  auto tokenizer = Load("gpt2");
  std::vector<TokenId> prompt = Encode(*tokenizer, "a long enough prompt ", true);
  prompt.push_back(ByteId(*tokenizer, 0xE4));
  prompt.push_back(ByteId(*tokenizer, 0xB8));
  Detokenizer detokenizer(tokenizer.get(), prompt, true);

  EXPECT_EQ(detokenizer.Push(ByteId(*tokenizer, 0xAD)), "中");
}

TEST(DetokenizerTest, SpecialTokensAreLeftOutOnlyWhenAsked) {
  auto tokenizer = Load("llama3");
  std::vector<TokenId> ids = {IdOf(*tokenizer, "a"), IdOf(*tokenizer, "<|eot_id|>")};

  EXPECT_EQ(StreamAll(Detokenizer(tokenizer.get(), {}, true), ids), "a");
  EXPECT_EQ(StreamAll(Detokenizer(tokenizer.get(), {}, false), ids), "a<|eot_id|>");
}

TEST(DetokenizerTest, IdsWithoutATokenAddNothing) {
  auto tokenizer = Load("gpt2");
  std::vector<TokenId> ids = {-1, tokenizer->vocab_size(), 2147483647, -2147483647 - 1};

  EXPECT_EQ(StreamAll(Detokenizer(tokenizer.get(), ids, true), ids), "");
  EXPECT_EQ(tokenizer->Decode(ids, false), "");
}

TEST(DetokenizerTest, CopyGoesItsOwnWay) {
  auto tokenizer = Load("gpt2");
  Detokenizer first(tokenizer.get(), {}, true);
  first.Push(ByteId(*tokenizer, 0xC3));

  Detokenizer second = first;

  EXPECT_EQ(first.Push(ByteId(*tokenizer, 0xA9)), "é");
  EXPECT_EQ(second.Push(ByteId(*tokenizer, 0xA8)), "è");
}

class DetokenizerPropertyTest : public testing::TestWithParam<const char*> {};

// Random tokens, half of them single bytes, cut at a random place into prompt and output: the text
// of the prompt without an unfinished character, and the pieces, are the decoded whole.
TEST_P(DetokenizerPropertyTest, PromptTextAndPiecesJoinToTheDecodedWhole) {
  auto tokenizer = Load(GetParam());
  std::mt19937 random(11);
  auto pick = [&random](int32_t limit) {
    return static_cast<TokenId>(random() % static_cast<uint32_t>(limit));
  };
  for (int round = 0; round < 20000; ++round) {
    bool skip = round % 2 == 0;
    std::vector<TokenId> ids(random() % 12);
    for (TokenId& id : ids) {
      id = pick(random() % 2 == 0 ? 270 : tokenizer->vocab_size());
    }
    size_t cut = ids.empty() ? 0 : random() % (ids.size() + 1);
    std::vector<TokenId> prompt(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
    std::vector<TokenId> output(ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end());
    std::string prompt_text;
    DecodeState state = tokenizer->decoder().Start();
    for (TokenId id : prompt) {
      tokenizer->decoder().Append(id, skip, &state, &prompt_text);
    }

    std::string streamed = StreamAll(Detokenizer(tokenizer.get(), prompt, skip), output);

    ASSERT_EQ(prompt_text + streamed, tokenizer->Decode(ids, skip)) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    DetokenizerPropertyTest,
    testing::Values("gpt2", "llama3", "cased", "llama2", "mistral", "metaspace"),
    [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace quire
