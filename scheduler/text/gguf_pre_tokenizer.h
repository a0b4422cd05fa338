// The key tokenizer.ggml.pre names a pre-tokenizer, which cuts a text into words for byte-level
// BPE. ReadGgufPreTokenizer translates this name into components of tokenizer.json.
//
// Thread safety: a value type and a free function, safe from any thread.
// Source:        tokenizer.json of the models after which llama.cpp names the pre-tokenizers.
#ifndef QUIRE_SCHEDULER_TEXT_GGUF_PRE_TOKENIZER_H_
#define QUIRE_SCHEDULER_TEXT_GGUF_PRE_TOKENIZER_H_

#include "absl/status/statusor.h"

#include "common/json/json.h"
#include "common/model/gguf_metadata.h"

namespace quire {

// Components of tokenizer.json.
struct GgufPreTokenizer {
  Json normalizer;     // null: none
  Json pre_tokenizer;  // ends with ByteLevel
  bool ignore_merges = false;
  bool adds_bos = false;  // default of tokenizer.ggml.add_bos_token
};

// If the key is missing, the name is "default", as in llama.cpp. Errors: those of
// GgufMetadata; kInvalidArgument, reason MODEL_FILE, for an unknown name.
absl::StatusOr<GgufPreTokenizer> ReadGgufPreTokenizer(const GgufMetadata& metadata);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_GGUF_PRE_TOKENIZER_H_
