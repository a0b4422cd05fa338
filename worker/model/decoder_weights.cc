#include "worker/model/decoder_weights.h"

#include <utility>

namespace quire {
namespace {

class Memory {
 public:
  void Add(const DeviceBuffer& buffer) {
    if (buffer.data() != nullptr) {
      spans_.emplace_back(static_cast<const std::byte*>(buffer.data()),
                          static_cast<size_t>(buffer.capacity_bytes()));
    }
  }
  void Add(const NormWeights& norm) {
    Add(norm.weight);
    Add(norm.bias);
  }
  void Add(const std::unique_ptr<PackedLinear>& linear) {
    if (linear != nullptr) {
      const auto memory = linear->memory();
      spans_.insert(spans_.end(), memory.begin(), memory.end());
    }
  }
  void Add(const LayerWeights& layer) {
    Add(layer.attention_norm);
    Add(layer.qkv);
    Add(layer.q_norm);
    Add(layer.k_norm);
    Add(layer.attention_out);
    Add(layer.attention_out_bias);
    Add(layer.mlp_norm);
    Add(layer.mlp_in);
    Add(layer.mlp_out);
    Add(layer.mlp_out_bias);
  }

  std::vector<std::span<const std::byte>> Take() { return std::move(spans_); }

 private:
  std::vector<std::span<const std::byte>> spans_;
};

}  // namespace

std::vector<std::span<const std::byte>> MemoryOf(const DecoderWeights& weights) {
  Memory memory;
  memory.Add(weights.token_table.data);
  memory.Add(weights.position_table.data);
  memory.Add(weights.project_in);
  memory.Add(weights.embedding_norm);
  for (const LayerWeights& layer : weights.layers) {
    memory.Add(layer);
  }
  memory.Add(weights.final_norm);
  memory.Add(weights.project_out);
  memory.Add(weights.lm_head);
  memory.Add(weights.alibi_slopes);
  return memory.Take();
}

}  // namespace quire
