// Bytes as token ids, some of them before and some after the end of a prompt: pieces are valid
// UTF-8, and joined they are the text of the whole, which is what the tokens' bytes make.
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "scheduler/text/detokenizer.h"
#include "scheduler/text/utf8.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_tokenizers.h"
#include "tests/fuzz/plain_text_rules.h"

namespace {

using quire::TokenId;

// Two bytes an id, so that also some below 0 and past the vocabulary are asked for.
std::vector<TokenId> TakeIds(quire::FuzzInput* input) {
  std::vector<TokenId> ids;
  while (!input->empty()) {
    const int low = input->TakeByte();
    ids.push_back(low + 256 * (input->TakeByte() % 20) - 8);
  }
  return ids;
}

// The text that is final after ids, as far as it is not held back.
std::string Push(const std::vector<TokenId>& ids, quire::Detokenizer* detokenizer) {
  std::string text;
  for (TokenId id : ids) {
    const std::string piece = detokenizer->Push(id);
    QUIRE_CHECK(quire::IsValidUtf8(piece));
    text += piece;
  }
  return text;
}

// All tokens of two of the files are bytes, of the SentencePiece one those like <0x0A>; in front of
// its text is a space that was not there.
std::string PlainTextOf(const std::vector<TokenId>& ids,
                        const quire::Tokenizer& tokenizer,
                        bool skip_special_tokens) {
  const bool is_sentence_piece =
      &tokenizer == &quire::FuzzTokenizer(quire::kSentencePieceTokenizer);
  std::string text;
  std::string bytes;
  for (TokenId id : ids) {
    if (!tokenizer.IsValidId(id) || (skip_special_tokens && tokenizer.IsSpecial(id))) {
      continue;
    }
    if (is_sentence_piece && !tokenizer.TokenText(id).starts_with("<0x")) {
      text += quire::PlainText(std::exchange(bytes, {}), is_sentence_piece);
      text += tokenizer.TokenBytes(id);
    } else {
      bytes += tokenizer.TokenBytes(id);
    }
  }
  text += quire::PlainText(bytes, is_sentence_piece);
  return is_sentence_piece && text.starts_with(' ') ? text.substr(1) : text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, size);
  const uint8_t choice = input.TakeByte();
  const bool skip_special_tokens = (choice & 0x80) != 0;
  const quire::Tokenizer& tokenizer = quire::FuzzTokenizer(choice & 0x7F);
  const size_t num_prompt_tokens = input.TakeByte();
  const std::vector<TokenId> ids = TakeIds(&input);
  const auto end_of_prompt =
      ids.begin() + static_cast<std::ptrdiff_t>(std::min(num_prompt_tokens, ids.size()));
  const std::vector<TokenId> prompt(ids.begin(), end_of_prompt);
  const std::vector<TokenId> output(end_of_prompt, ids.end());

  quire::Detokenizer of_prompt(&tokenizer, {}, skip_special_tokens);
  quire::Detokenizer of_output(&tokenizer, prompt, skip_special_tokens);
  std::string text = Push(prompt, &of_prompt) + Push(output, &of_output);
  text += of_output.Flush();

  QUIRE_CHECK(text == tokenizer.Decode(ids, skip_special_tokens));
  QUIRE_CHECK(text == PlainTextOf(ids, tokenizer, skip_special_tokens));
  return 0;
}
