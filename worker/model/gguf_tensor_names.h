// Translates tensor names between GGUF files and Hugging Face transformers: "blk.3.attn_q.weight"
// is "model.layers.3.self_attn.q_proj.weight" in transformers.
//
// Thread safety: free functions, safe from any thread.
// Source:        gguf.TensorNameMap of ggml's Python package.
#ifndef QUIRE_WORKER_MODEL_GGUF_TENSOR_NAMES_H_
#define QUIRE_WORKER_MODEL_GGUF_TENSOR_NAMES_H_

#include <optional>
#include <string>
#include <string_view>

namespace quire {

// Both return nullopt unless the name is that of a weight or bias of a llama, qwen2 or qwen3 model.
// rope_freqs.weight has no name in transformers, so HuggingFaceNameOf returns nullopt for it.
std::optional<std::string> HuggingFaceNameOf(std::string_view gguf_name);
std::optional<std::string> GgufNameOf(std::string_view hugging_face_name);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_GGUF_TENSOR_NAMES_H_
