// ModelConfig holds the fields that determine a model's computation. They come from config.json of
// a Hugging Face model directory, or from the metadata of a GGUF file. The parser checks all
// ranges, so later code trusts the values.
//
// Families: Llama 2 and 3, Mistral, Qwen2, Qwen3, OPT, BLOOM. After parsing, code looks at the
// fields of ModelConfig, never at the family.
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
#include "common/model/quantization_config.h"

namespace quire {

// Upper bound on a served model's positions and sliding window.
inline constexpr int32_t kMaxPositionsLimit = 1 << 24;

// How RoPE frequencies are scaled for contexts longer than in training.
enum class RopeScalingKind : uint8_t {
  kNone,
  kLinear,        // divides every frequency by one factor
  kLlama3,        // divides low frequencies, interpolates the middle ones
  kDynamic,       // raises theta with the served length (NTK)
  kYarn,          // divides low frequencies, interpolates by a ramp over the dimensions
  kLongRope,      // divides each frequency by its own factor, chosen by the served length
  kProportional,  // divides the first frequencies by one factor; the others do not rotate
  kFactors,       // divides each frequency by its own factor
};

struct RopeConfig {
  double theta = 10000.0;
  RopeScalingKind scaling = RopeScalingKind::kNone;
  double factor = 1.0;            // used by kLinear, kLlama3, kDynamic, kYarn, kProportional
  double low_freq_factor = 1.0;   // used by kLlama3
  double high_freq_factor = 4.0;  // used by kLlama3
  // Context length in training; used by kLlama3, kDynamic, kYarn, kLongRope.
  int32_t original_max_position_embeddings = 8192;
  double beta_fast = 32.0;        // used by kYarn
  double beta_slow = 1.0;         // used by kYarn
  bool truncate = true;           // used by kYarn: the ramp begins and ends at whole dimensions
  double rotated_share = 1.0;     // used by kProportional: share of the frequencies that rotate
  float attention_factor = 1.0F;  // multiplies all cosines and sines
  // [head_dim / 2], divisors of the frequencies. Used by kFactors, and by kLongRope for contexts up
  // to original_max_position_embeddings.
  std::vector<float> factors;
  std::vector<float> long_factors;  // [head_dim / 2], used by kLongRope beyond that length

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  // "LlamaForCausalLM", ... For a multimodal model: the architecture of its language model.
  std::string architecture;
  bool is_text_tower = false;  // multimodal model; its vision and audio tensors are not loaded
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
  bool gated_mlp = true;  // true: the MLP is down(act(gate) * up); false: fc2(act(fc1))
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm of q and k over head_dim, before RoPE (Qwen3)
  bool tie_word_embeddings = false;
  std::optional<RopeConfig> rope;  // nullopt: learned positions (OPT) or ALiBi (BLOOM) instead
  // ALiBi: attention scores fall linearly with distance, with one slope per head (BLOOM).
  bool alibi = false;
  // Row of position 0 in the table of learned positions (OPT: 2).
  int32_t learned_position_offset = 0;
  // Width of the token embedding (OPT's word_embed_proj_dim). If it differs from hidden_size, one
  // projection converts embeddings to hidden_size, and another converts the layers' output back.
  int32_t embedding_dim = 0;
  bool embedding_norm = false;  // a norm between the embedding and the first layer (BLOOM)
  // True: norms precede attention and MLP (pre-norm). False: norms follow attention and MLP
  // (post-norm), as in OPT-350m (do_layer_norm_before = false).
  bool norm_before = true;
  // True: a sub-layer's residual connection starts after the sub-layer's norm (BLOOM's
  // apply_residual_connection_post_layernorm). False: it starts before the norm. If this field is
  // true, norm_before is true too.
  bool residual_after_norm = false;
  bool final_norm = true;   // a norm between the last layer and the logits
  bool norm_affine = true;  // norms have weights (OPT's layer_norm_elementwise_affine)
  // In a layer with a sliding window, a query attends to itself and to the sliding_window - 1
  // positions before it.
  std::optional<int32_t> sliding_window;
  std::vector<bool> layer_uses_sliding_window;  // [num_layers], or empty without sliding_window
  DType dtype = DType::kF32;  // type of the stored weights (torch_dtype); default KV cache type
  QuantizationConfig quantization;  // of the weights in the files
  std::optional<TokenId> bos_token_id;
  std::vector<TokenId> eos_token_ids;  // from config.json; GenerationDefaults can have more

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Sampling defaults from generation_config.json. Fields that the file lacks are unset.
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

// Parses config.json. The sizes that decide the shape of the weights are required: vocab_size,
// hidden_size (BLOOM: or n_embed), num_hidden_layers (BLOOM: or n_layer), num_attention_heads
// (BLOOM: or n_head), intermediate_size (OPT: ffn_dim; BLOOM: no field). Any other missing field
// takes the default of Hugging Face transformers. Reads the RoPE parameters in both spellings
// (rope_scaling with rope_theta, or rope_parameters). Reads the stored type under both names
// (torch_dtype, or dtype). Of a multimodal model, parses only the language model (text_tower.h).
// Ignores auto_map: code from a model directory is never run.
// Errors: kInvalidArgument, reason CONFIG, message "config.json: field: rule".
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& config_json);

// Reads config.json of a directory, or the metadata of a GGUF file (model_path.h). Errors: those of
// ParseModelConfig, ResolveModelFile and ReadFile; those of GgufFile::Open and ConfigFromGguf.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_path);

// Reads generation_config.json of a directory, or the metadata of a GGUF file. All fields are unset
// if the directory has no generation_config.json.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_path);

// Returns the sliding window if all layers use it. Returns 0 if at least one layer attends to all
// tokens.
int32_t WindowOfAllLayers(const ModelConfig& config);

// Returns a digest of every field except the bos and eos ids, which affect no computation.
// Scheduler and workers get the same digest for the same model, on any machine.
uint64_t HashOf(const ModelConfig& config);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_MODEL_CONFIG_H_
