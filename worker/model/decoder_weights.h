// DecoderWeights holds the weights of a decoder in the form that kernels read: linear layers packed
// by the backend, tables in the type of the file, norms in fp32.
//
// With several ranks DecoderWeights holds this rank's part; see RankShare.
//
// Thread safety: immutable after loading.
#ifndef QUIRE_WORKER_MODEL_DECODER_WEIGHTS_H_
#define QUIRE_WORKER_MODEL_DECODER_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/api/dense.h"
#include "worker/model/device_buffer.h"
#include "worker/model/kv_cache_scales.h"

namespace quire {

struct NormWeights {
  DeviceBuffer weight;  // fp32 [width]; all ones if the model has no norm weights
  DeviceBuffer bias;    // fp32 [width], or empty
};

// A table of which single rows are looked up, by token or by position.
struct TableWeights {
  DeviceBuffer data;  // empty if tokens are looked up in the packed lm_head instead
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t width = 0;

  MatrixView view() const {
    return {.data = data.data(), .format = format, .rows = rows, .cols = width};
  }
};

struct LayerWeights {
  NormWeights attention_norm;
  std::unique_ptr<PackedLinear> qkv;
  DeviceBuffer q_norm;  // fp32 [head_dim], or empty
  DeviceBuffer k_norm;
  std::unique_ptr<PackedLinear> attention_out;
  // fp32 [hidden_size] if the layer has this bias, there are several ranks, and the backend's
  // adds_bias_to_sums() is true; else empty.
  DeviceBuffer attention_out_bias;
  NormWeights mlp_norm;
  std::unique_ptr<PackedLinear> mlp_in;
  std::unique_ptr<PackedLinear> mlp_out;
  DeviceBuffer mlp_out_bias;  // set under the same conditions as attention_out_bias
  KvCacheScales kv_cache_scales;
};

struct DecoderWeights {
  TableWeights token_table;
  TableWeights position_table;               // no rows if the model has none
  std::unique_ptr<PackedLinear> project_in;  // null if the model has none
  NormWeights embedding_norm;                // empty if the model has none
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  std::unique_ptr<PackedLinear> project_out;  // null if the model has none
  std::unique_ptr<PackedLinear> lm_head;
  DeviceBuffer alibi_slopes;  // fp32 [num_heads], or empty
  int64_t bytes = 0;
  uint64_t sum = 0;  // see Model::weights_sum
};

// See Model::weights_memory. REQUIRES: the backend of these weights computes in main memory.
std::vector<std::span<const std::byte>> MemoryOf(const DecoderWeights& weights);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_DECODER_WEIGHTS_H_
