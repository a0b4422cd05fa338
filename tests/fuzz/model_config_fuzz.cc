// Bytes as a config.json: refused with a reason, or sizes whose products fit into 64 bits, heads
// and layers that fit together, and tokens of the vocabulary.
#include <string>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/model/model_config.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

void CheckRange(double value, double min, double max) {
  QUIRE_CHECK(value >= min && value <= max);  // not for a number that is none
}

void CheckSizes(const quire::ModelConfig& config) {
  CheckRange(config.vocab_size, 1, 1 << 22);
  CheckRange(config.hidden_size, 1, 1 << 18);
  CheckRange(config.embedding_dim, 1, 1 << 18);
  CheckRange(config.intermediate_size, 1, 1 << 20);
  CheckRange(config.num_layers, 1, 1024);
  CheckRange(config.num_heads, 1, 4096);
  CheckRange(config.num_kv_heads, 1, config.num_heads);
  QUIRE_CHECK_EQ(config.num_heads % config.num_kv_heads, 0);
  CheckRange(config.head_dim, 1, 1024);
  CheckRange(config.max_position_embeddings, 1, 1 << 24);
  CheckRange(config.norm_eps, 0.0, 1.0);
}

void CheckPositions(const quire::ModelConfig& config) {
  if (config.sliding_window.has_value()) {
    CheckRange(*config.sliding_window, 1, 1 << 24);
    QUIRE_CHECK_EQ(config.layer_uses_sliding_window.size(), static_cast<size_t>(config.num_layers));
  }
  QUIRE_CHECK_LE(quire::WindowOfAllLayers(config), config.sliding_window.value_or(0));
  if (!config.rope.has_value()) {
    QUIRE_CHECK(config.alibi || config.learned_position_offset > 0);
    return;
  }
  const quire::RopeConfig& rope = *config.rope;
  QUIRE_CHECK_EQ(config.head_dim % 2, 0);
  CheckRange(rope.theta, 1.0, 1e12);
  CheckRange(rope.factor, 1.0, 1e6);
  CheckRange(rope.original_max_position_embeddings, 1, 1 << 24);
  CheckRange(double{rope.attention_factor}, 1e-7, 1e7);
  CheckRange(rope.rotated_share, 0.0, 1.0);
  if (rope.scaling == quire::RopeScalingKind::kYarn) {
    CheckRange(rope.beta_slow, 1e-6, 1e6);
    CheckRange(rope.beta_fast, rope.beta_slow, 1e6);
    QUIRE_CHECK(rope.theta > 1.0);
  }
  if (rope.scaling == quire::RopeScalingKind::kLongRope) {
    QUIRE_CHECK_EQ(rope.factors.size(), static_cast<size_t>(config.head_dim / 2));
    QUIRE_CHECK_EQ(rope.long_factors.size(), rope.factors.size());
    CheckRange(rope.factors.front(), 1e-7, 1e6);
    CheckRange(rope.long_factors.back(), 1e-7, 1e6);
  }
  if (rope.scaling == quire::RopeScalingKind::kLlama3) {
    CheckRange(rope.low_freq_factor, 1e-6, 1e6);
    CheckRange(rope.high_freq_factor, 1e-6, 1e6);
    QUIRE_CHECK(rope.high_freq_factor > rope.low_freq_factor);
  }
}

void CheckQuantization(const quire::QuantizationConfig& config) {
  for (const quire::QuantizationConfig::Group& group : config.groups) {
    const quire::WeightScheme& scheme = group.scheme;
    QUIRE_CHECK(scheme.bits == 4 || scheme.bits == 8);
    CheckRange(scheme.group_rows, 1, 1 << 20);
    CheckRange(scheme.group_cols, 0, 1 << 20);
  }
  const auto scheme = config.SchemeFor("model.layers.0.mlp.up_proj", "Linear");
  QUIRE_CHECK(scheme.ok() || quire::ReasonOf(scheme.status()) == "CONFIG");
  QUIRE_CHECK(!config.groups.empty() || (scheme.ok() && *scheme == nullptr));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = quire::ParseModelConfig(text);
  if (!config.ok()) {
    QUIRE_CHECK_EQ(quire::ReasonOf(config.status()), "CONFIG");
    QUIRE_CHECK(std::string(config.status().message()).starts_with("config.json: "));
    return 0;
  }
  CheckSizes(*config);
  CheckPositions(*config);
  CheckQuantization(config->quantization);
  CheckRange(config->bos_token_id.value_or(0), 0, config->vocab_size - 1);
  for (quire::TokenId id : config->eos_token_ids) {
    CheckRange(id, 0, config->vocab_size - 1);
  }
  QUIRE_CHECK(*quire::ParseModelConfig(text) == *config);
  QUIRE_CHECK_EQ(quire::HashOf(*quire::ParseModelConfig(text)), quire::HashOf(*config));
  quire::is_accepted = true;
  return 0;
}
