// ModelConfig is config.json of a Hugging Face model directory, reduced to the fields that
// determine the computation: parsed once, range-checked once, trusted afterwards.
//
// Families: Llama 2 and 3, Mistral, Qwen2, Qwen3, OPT, BLOOM. Code after parsing looks at the flags
// below, never at the family.
//
// Thread safety: a value type.
// Units:         sizes in elements, positions in tokens.
#ifndef QUIRE_COMMON_MODEL_MODEL_CONFIG_H_
#define QUIRE_COMMON_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/model/dtype.h"
#include "common/model/layer_kinds.h"

namespace quire {

// Upper bound on a served model's positions and sliding window.
inline constexpr int32_t kMaxPositionsLimit = 1 << 24;

enum class RopeScalingKind : uint8_t { kNone, kLinear, kLlama3 };

struct RopeConfig {
  double theta = 10000.0;
  RopeScalingKind scaling = RopeScalingKind::kNone;
  double factor = 1.0;                              // kLinear, kLlama3
  double low_freq_factor = 1.0;                     // kLlama3
  double high_freq_factor = 4.0;                    // kLlama3
  int32_t original_max_position_embeddings = 8192;  // kLlama3

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", ...
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t max_position_embeddings = 0;
  NormKind norm = NormKind::kRmsNorm;
  double norm_eps = 1e-5;
  ActivationKind activation = ActivationKind::kSilu;
  bool gated_mlp = true;  // down(act(gate) * up); otherwise fc2(act(fc1))
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim on q and k, before RoPE (Qwen3)
  bool tie_word_embeddings = false;
  std::optional<RopeConfig> rope;  // nullopt: learned positions (OPT) or ALiBi
  bool alibi = false;              // scores fall linearly with distance, one slope per head (BLOOM)
  // Learned positions start at this row of the table (OPT: 2).
  int32_t learned_position_offset = 0;
  // Embedding width, projected to hidden_size and back if it differs (OPT's word_embed_proj_dim).
  int32_t embedding_dim = 0;
  bool embedding_norm = false;  // a norm between the embedding and the first layer (BLOOM)
  bool norm_before = true;  // OPT-350m normalizes after the block (do_layer_norm_before = false)
  // The residual connection starts after the sub-layer's norm, not before it (BLOOM's
  // apply_residual_connection_post_layernorm). Only with norm_before.
  bool residual_after_norm = false;
  bool final_norm = true;   // a norm between the last layer and the logits
  bool norm_affine = true;  // norms have weights (OPT's layer_norm_elementwise_affine)
  // In a windowed layer a query attends to itself and the sliding_window - 1 positions before it.
  std::optional<int32_t> sliding_window;
  std::vector<bool> layer_uses_sliding_window;  // [num_layers] if sliding_window is set
  DType dtype = DType::kF32;  // torch_dtype: the stored type, a default for the KV cache
  std::optional<TokenId> bos_token_id;
  std::vector<TokenId> eos_token_ids;  // from config.json; generation_config.json may add some

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Sampling defaults from generation_config.json; fields absent there are unset.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::vector<TokenId> eos_token_ids;
  std::optional<TokenId> bos_token_id;
};

// Parses config.json. The sizes that decide the shape of the weights (vocab_size, hidden_size,
// intermediate_size or ffn_dim, num_hidden_layers, num_attention_heads; BLOOM: vocab_size,
// hidden_size or n_embed, n_layer, n_head or the names above) are required; any other missing field
// takes the default of Hugging Face transformers. Both spellings of rope parameters (rope_scaling
// with rope_theta, rope_parameters) and of the stored type (torch_dtype, dtype) are read. auto_map
// is ignored: code from a model directory is never run.
// Errors: kInvalidArgument, reason CONFIG, message "config.json: field: rule".
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& config_json);

// Reads <model_dir>/config.json. Errors: as ParseModelConfig, ResolveModelFile and ReadFile.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir);

// Reads <model_dir>/generation_config.json. All fields are unset if the file is absent.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_dir);

// Returns the sliding window if all layers have one; 0 if some layer reads all tokens.
int32_t WindowOfAllLayers(const ModelConfig& config);

// Returns a digest of every field except the bos and eos ids, which affect no computation. It is
// equal on scheduler and workers, on any machine.
uint64_t HashOf(const ModelConfig& config);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_MODEL_CONFIG_H_
