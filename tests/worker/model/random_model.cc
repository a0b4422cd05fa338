#include "tests/worker/model/random_model.h"

#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/model/model_config.h"
#include "tests/support/random.h"
#include "worker/model/weight_layout.h"

namespace quire {
namespace {

// Collects tensors and the numbers in them, in the same order.
class Tensors {
 public:
  explicit Tensors(uint64_t seed) : random_(seed) {}

  // Uniform numbers of this mean and standard deviation.
  void Add(const std::string& name,
           const std::vector<int64_t>& shape,
           double mean,
           double deviation) {
    int64_t count = 1;
    for (int64_t size : shape) {
      count *= size;
    }
    specs_.push_back({.name = name, .dtype = "BF16", .shape = shape});
    const double half_width = deviation * std::sqrt(3.0);
    for (int64_t i = 0; i < count; ++i) {
      const double uniform = static_cast<double>(random_.Next() >> 11) * 0x1p-52 - 1.0;
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(mean + half_width * uniform));
      data_.push_back(static_cast<char>((bits >> 16) & 0xFF));
      data_.push_back(static_cast<char>(bits >> 24));
    }
  }

  void Add(const TableLayout& table) {
    Add(table.name + ".weight", {table.rows, table.width}, 0.0, 1.0);
  }

  void Add(const NormLayout& norm) {
    if (norm.has_weight) {
      Add(norm.name + ".weight", {norm.width}, 1.0, 0.1);
    }
    if (norm.has_bias) {
      Add(norm.name + ".bias", {norm.width}, 0.0, 0.1);
    }
  }

  void Add(const LinearLayout& linear, double gain) {
    for (const LinearPart& part : linear.parts) {
      const double deviation = gain / std::sqrt(static_cast<double>(linear.cols));
      Add(part.name + ".weight", {part.rows, linear.cols}, 0.0, deviation);
      if (linear.has_bias) {
        Add(part.name + ".bias", {part.rows}, 0.0, 0.2);
      }
    }
  }

  void Add(const std::optional<NormLayout>& norm) {
    if (norm.has_value()) {
      Add(*norm);
    }
  }

  const std::vector<TensorSpec>& specs() const { return specs_; }
  const std::string& data() const { return data_; }

 private:
  Random random_;
  std::vector<TensorSpec> specs_;
  std::string data_;
};

}  // namespace

void WriteRandomModel(const Json& config,
                      uint64_t seed,
                      ModelDir* dir,
                      const std::map<std::string, float>& scalars) {
  auto parsed = ParseModelConfig(config.dump());
  QUIRE_CHECK(parsed.ok());
  const WeightLayout layout = MakeWeightLayout(*parsed, NamePrefixes(*parsed).front());
  Tensors tensors(seed);
  tensors.Add(layout.token_table);
  if (layout.position_table.has_value()) {
    tensors.Add(*layout.position_table);
  }
  for (const auto* linear : {&layout.project_in, &layout.project_out}) {
    if (linear->has_value()) {
      tensors.Add(**linear, 1.0);
    }
  }
  tensors.Add(layout.embedding_norm);
  for (const LayerLayout& layer : layout.layers) {
    tensors.Add(layer.attention_norm);
    tensors.Add(layer.qkv, 1.0);
    tensors.Add(layer.q_norm);
    tensors.Add(layer.k_norm);
    tensors.Add(layer.attention_out, 0.5);
    tensors.Add(layer.mlp_norm);
    tensors.Add(layer.mlp_in, 1.0);
    tensors.Add(layer.mlp_out, 0.5);
  }
  tensors.Add(layout.final_norm);
  if (!parsed->tie_word_embeddings) {
    constexpr double kLogitDeviation = 4.0;
    tensors.Add(layout.lm_head, kLogitDeviation);
  }
  for (const auto& [name, value] : scalars) {
    tensors.Add(name, {}, value, 0.0);
  }
  dir->config = config;
  dir->tensors = tensors.specs();
  dir->WriteConfig();
  dir->WriteFile("model.safetensors", ModelDir::Safetensors(dir->Header().dump(), tensors.data()));
}

Json EightHeads() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 101},
          {"hidden_size", 64},
          {"intermediate_size", 88},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 128},
          {"attention_bias", true},
          {"mlp_bias", true}};
}

}  // namespace quire
