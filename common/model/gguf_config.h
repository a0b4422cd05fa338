// Reads the equivalents of config.json and generation_config.json from the metadata of a GGUF file.
// Two facts are not in the metadata, but follow from the file's tensors: which projections have a
// bias, and whether the output layer is the token embedding.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument, reason MODEL_FILE or CONFIG; kNotFound, reason MODEL_FILE, if a
//                key is missing. The message names the file and the key.
// Source:        docs/gguf.md of the ggml project.
#ifndef QUIRE_COMMON_MODEL_GGUF_CONFIG_H_
#define QUIRE_COMMON_MODEL_GGUF_CONFIG_H_

#include <string_view>

#include "absl/status/statusor.h"

#include "common/model/gguf_file.h"
#include "common/model/model_config.h"

namespace quire {

// Name of the tensor that holds the divisors of the RoPE frequencies. ConfigFromGguf reads this
// tensor; it is no weight.
inline constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight";

// Supports the architectures llama, qwen2 and qwen3. Sets dtype, the default type of the KV cache,
// to bf16 for every type of weights. Sets eos_token_ids to all tokens that end an answer
// (gguf_special_tokens.h).
absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file);

// Reads the keys general.sampling.*, which few files have.
absl::StatusOr<GenerationDefaults> GenerationDefaultsFromGguf(const GgufFile& file);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_CONFIG_H_
