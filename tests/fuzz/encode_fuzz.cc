// Bytes as text: refused when they are no UTF-8, else tokens of the vocabulary; the bundled model's
// are the text again, and the SentencePiece one's what the definition says. Steps are linear in the
// bytes, but where a pattern of the file is not: `+:` reads a word from each of its letters.
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/read_file.h"
#include "scheduler/text/utf8.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_tokenizers.h"
#include "tests/fuzz/fuzz_verdict.h"
#include "tests/fuzz/plain_text_rules.h"

// A third of the budget, with some for texts of a few bytes.
static size_t MaxSteps(size_t num_bytes) { return quire::kMaxStepsPerByte / 3 * num_bytes + 1000; }

// Long enough that the tokenizer merges with a queue.
static constexpr size_t kMaxPlainBytes = 256;

static std::vector<quire::TokenId> PlainIds(std::string_view text) {
  static const auto* const plain = [] {
    const char* const path = quire::kFuzzTokenizerPaths[quire::kSentencePieceTokenizer];
    const auto file = quire::ParseJson(quire::ReadFile(path, 1 << 20).value());
    return new quire::PlainBpe(*file, quire::FuzzTokenizer(quire::kSentencePieceTokenizer));
  }();
  return plain->Encode(text);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, size);
  const uint8_t choice = input.TakeByte();
  const bool parse_special = (choice & 0x80) != 0;
  const bool add_special_tokens = (choice & 0x40) != 0;
  const quire::Tokenizer& tokenizer = quire::FuzzTokenizer(choice & 0x3F);
  const std::string_view text = input.TakeRest();
  quire::TextBudget budget(text.size());

  const auto ids = tokenizer.Encode(text, add_special_tokens, parse_special, &budget);

  QUIRE_CHECK_EQ(quire::IsValidUtf8(text), quire::IsPlainUtf8(text));
  if (!quire::IsValidUtf8(text)) {
    QUIRE_CHECK_EQ(quire::ReasonOf(ids.status()), "INVALID_UTF8");
    return 0;
  }
  if (&tokenizer == &quire::FuzzTokenizer(quire::kPatternTokenizer)) {
    if (!ids.ok()) {
      QUIRE_CHECK_EQ(quire::ReasonOf(ids.status()), "TOKENIZE_BUDGET");
      return 0;
    }
  } else {
    QUIRE_CHECK(ids.ok());
    QUIRE_CHECK_LE(budget.num_steps(), MaxSteps(text.size()));
  }
  quire::is_accepted = true;
  for (quire::TokenId id : *ids) {
    QUIRE_CHECK(tokenizer.IsValidId(id));
  }
  const std::string back = tokenizer.Decode(*ids, /*skip_special_tokens=*/!parse_special);
  QUIRE_CHECK(quire::IsValidUtf8(back));
  if (&tokenizer == &quire::FuzzTokenizer(quire::kBundledTokenizer) &&
      !(parse_special && add_special_tokens)) {
    QUIRE_CHECK(back == text);
  }
  if (&tokenizer == &quire::FuzzTokenizer(quire::kSentencePieceTokenizer) && !parse_special &&
      !add_special_tokens && text.size() <= kMaxPlainBytes) {
    QUIRE_CHECK(*ids == PlainIds(text));
  }
  return 0;
}
