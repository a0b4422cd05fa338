// TokenizerJsonFromGguf translates the tokenizer of a GGUF file into a tokenizer.json, which
// Tokenizer::FromJson reads. It supports two values of tokenizer.ggml.model: `gpt2`, byte-level BPE
// with the merges in the file; `llama`, SentencePiece BPE, whose merges follow from the tokens'
// scores.
//
// Control tokens and unknown tokens become special added tokens. User-defined tokens become added
// tokens that are not special. A token with an empty text is left out, so its id names no token.
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

// Returns FoldHash of all keys tokenizer.ggml.* and their values. So files that differ only in
// their weights get the same digest.
uint64_t DigestOfGgufTokenizer(const GgufMetadata& metadata);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_GGUF_TOKENIZER_H_
