// GgufPreTokenizer is what the key tokenizer.ggml.pre stands for: how a byte-level vocabulary's
// text is cut into words.
//
// Thread safety: a value type and a free function, safe from any thread.
// Source:        tokenizer.json of the models that llama.cpp's names stand for.
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
  bool adds_bos = false;  // unless tokenizer.ggml.add_bos_token says something else
};

// A file without the key has the pre-tokenizer "default", as in llama.cpp. Errors: those of
// GgufMetadata; kInvalidArgument, reason MODEL_FILE, for an unknown name.
absl::StatusOr<GgufPreTokenizer> ReadGgufPreTokenizer(const GgufMetadata& metadata);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_GGUF_PRE_TOKENIZER_H_
