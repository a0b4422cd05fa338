#include "tests/scheduler/loop/letter_tokenizer.h"

#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/json/json.h"

namespace quire {

std::unique_ptr<Tokenizer> MakeLetterTokenizer() {
  Json json = Json::parse(R"({
    "added_tokens": [{"id": 29, "content": "<s>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {}, "merges": []}})");
  Json& vocab = json["model"]["vocab"];
  // Unsigned, as the parser makes them.
  for (uint32_t id = 0; id < kSpaceId; ++id) {
    vocab[std::string(1, static_cast<char>('a' + id))] = id;
  }
  vocab["Ġ"] = uint32_t{kSpaceId};
  vocab["Ã"] = uint32_t{kFirstByteOfE};
  vocab["©"] = uint32_t{kSecondByteOfE};
  auto tokenizer = Tokenizer::FromJson(json);
  QUIRE_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<TokenId> Letters(std::string_view text) {
  std::vector<TokenId> ids;
  for (char c : text) {
    ids.push_back(c == ' ' ? kSpaceId : static_cast<TokenId>(c - 'a'));
  }
  return ids;
}

}  // namespace quire
