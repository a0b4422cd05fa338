// TokenizerJsonFromGguf writes the tokenizer of a GGUF file as a tokenizer.json, which
// Tokenizer::FromJson reads. Vocabularies of two models are known: `gpt2`, byte-level BPE with the
// merges in the file; `llama`, SentencePiece BPE, whose merges follow from the tokens' scores.
//
// Control tokens become special added tokens; user-defined tokens become added tokens that are not
// special. An empty token's id names no token.
//
// Thread safety: free functions, safe from any thread.
// Errors:        those of GgufMetadata; kInvalidArgument, reason MODEL_FILE. The message names the
//                file and the key.
// Cost:          linear in the vocabulary for gpt2; for llama see spm_merges.h.
// Source:        docs/gguf.md of the ggml project; the converters of Hugging Face transformers.
#ifndef QUIRE_SCHEDULER_TEXT_GGUF_TOKENIZER_H_
#define QUIRE_SCHEDULER_TEXT_GGUF_TOKENIZER_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "common/json/json.h"
#include "common/model/gguf_metadata.h"

namespace quire {

absl::StatusOr<Json> TokenizerJsonFromGguf(const GgufMetadata& metadata);

// Returns FoldHash of the keys that TokenizerJsonFromGguf reads, so that files that differ only in
// their weights have one tokenizer.
uint64_t DigestOfGgufTokenizer(const GgufMetadata& metadata);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_GGUF_TOKENIZER_H_
