// Bytes as a tokenizer.json: refused with a reason, or it works, within the budget of a text.
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "scheduler/text/detokenizer.h"
#include "scheduler/text/tokenizer.h"
#include "scheduler/text/utf8.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

constexpr std::string_view kText =
    "Hello <s> w\xC3\xB6rld 123\n\n  don't \xE2\x96\x81 \xE4\xB8\xAD 👍   "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";

void Use(const quire::Tokenizer& tokenizer) {
  const auto ids = tokenizer.Encode(kText, /*add_special_tokens=*/true, /*parse_special=*/true);
  if (!ids.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(ids.status()), "TOKENIZE_BUDGET");
    return;
  }
  QUIRE_CHECK_LE(ids->size(), quire::kMaxFreeBytes + quire::kMaxBytesPerByte * kText.size());
  quire::Detokenizer detokenizer(&tokenizer, {}, /*skip_special_tokens=*/false);
  std::string streamed;
  for (quire::TokenId id : *ids) {
    QUIRE_CHECK(tokenizer.IsValidId(id));
    streamed += detokenizer.Push(id);
  }
  streamed += detokenizer.Flush();
  QUIRE_CHECK(quire::IsValidUtf8(streamed));
  QUIRE_CHECK(streamed == tokenizer.Decode(*ids, /*skip_special_tokens=*/false));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = quire::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(json.status()), "JSON");
    return 0;
  }
  const auto tokenizer = quire::Tokenizer::FromJson(*json);
  if (!tokenizer.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(tokenizer.status()), "TOKENIZER");
    return 0;
  }
  Use(**tokenizer);
  quire::is_accepted = true;
  return 0;
}
