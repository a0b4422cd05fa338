// DecoderModel computes Llama 2/3, Mistral, Qwen2, Qwen3 and OPT with the operations of a
// KernelBackend. The configuration says which parts are present; there is no class per family.
//
// Thread safety: one caller at a time (the executor thread).
// Cost:          Forward allocates only when a batch is larger than every one before it.
// Source:        Touvron et al. 2023 (Llama 2), Jiang et al. 2023 (Mistral 7B), Yang et al. 2024
//                and 2025 (Qwen2, Qwen3), Zhang et al. 2022 (OPT).
#ifndef QUIRE_WORKER_MODEL_DECODER_MODEL_H_
#define QUIRE_WORKER_MODEL_DECODER_MODEL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/model_config.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/batch.h"
#include "worker/model/decoder_weights.h"
#include "worker/model/host_buffer.h"
#include "worker/model/model.h"
#include "worker/model/rope_table.h"

namespace quire {

class DecoderModel : public Model {
 public:
  // The backend must outlive the model. REQUIRES: weights loaded for this configuration.
  DecoderModel(ModelConfig config, DecoderWeights weights, KernelBackend& backend);

  const ModelConfig& config() const override { return config_; }
  float* Forward(const Batch& batch, const KvCacheView& cache) override;
  int64_t weight_bytes() const override { return weights_.bytes; }

 private:
  // Activations of one step. Rows are tokens.
  struct Workspace {
    HostBuffer residual;   // [num_tokens, hidden_size]
    HostBuffer hidden;     // [num_tokens, hidden_size], a normalised residual
    HostBuffer delta;      // [num_tokens, hidden_size], what a sub-layer adds
    HostBuffer embedding;  // [num_tokens, embedding_dim], where it differs from hidden_size
    HostBuffer qkv;        // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]
    HostBuffer attention;  // [num_tokens, num_heads * head_dim]
    HostBuffer mlp;        // [num_tokens, intermediate_size, twice that when gated]
    HostBuffer activated;  // [num_tokens, intermediate_size]
    HostBuffer rows;       // [num_logits, hidden_size]
    HostBuffer projected;  // [num_logits, embedding_dim]
    HostBuffer logits;     // [num_logits, vocab_size]
  };

  void Reserve(const Batch& batch);
  void Embed(const Batch& batch);
  void RunPreNormLayer(int32_t layer, const Batch& batch, const KvCacheView& cache);
  void RunPostNormLayer(int32_t layer, const Batch& batch, const KvCacheView& cache);
  // x [num_tokens, hidden_size] -> workspace delta.
  void Attend(int32_t layer, const float* x, const Batch& batch, const KvCacheView& cache);
  void RunMlp(int32_t layer, const float* x, int64_t num_tokens);
  void Normalize(
      const NormWeights& norm, float* residual, const float* delta, float* out, int64_t num_tokens);
  float* Logits(const Batch& batch);

  const ModelConfig config_;
  const DecoderWeights weights_;
  KernelBackend& backend_;
  std::optional<RopeTable> rope_;
  Workspace workspace_;
  std::vector<TokenId> row_ids_;  // 0, 1, 2, ...
  // The sum that the next norm has to add to the residual, or null.
  const float* pending_delta_ = nullptr;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_DECODER_MODEL_H_
