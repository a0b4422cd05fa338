// DecoderModel computes Llama 2/3, Mistral, Qwen2, Qwen3, OPT and BLOOM with the operations of a
// KernelBackend. The configuration says which parts are present; there is no class per family. If
// the model is split, each rank computes its share. Each layer sums over the ranks twice, so that
// all ranks have the same activations.
//
// Thread safety: one caller at a time (the executor thread).
// Cost:          Begin allocates only if a batch or a position is larger than in all earlier
//                calls.
// Source:        Touvron et al. 2023 (Llama 2), Jiang et al. 2023 (Mistral 7B), Yang et al. 2024
//                and 2025 (Qwen2, Qwen3), Zhang et al. 2022 (OPT), BigScience 2022 (BLOOM).
#ifndef QUIRE_WORKER_MODEL_DECODER_MODEL_H_
#define QUIRE_WORKER_MODEL_DECODER_MODEL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/model/model_config.h"
#include "common/model/rank_share.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/batch.h"
#include "worker/model/decoder_weights.h"
#include "worker/model/device_buffer.h"
#include "worker/model/model.h"
#include "worker/model/rope_table.h"

namespace quire {

class DecoderModel : public Model {
 public:
  // The backend must outlive the model. REQUIRES: `weights` holds this share of a model with this
  // configuration.
  DecoderModel(ModelConfig config,
               const RankShare& share,
               DecoderWeights weights,
               KernelBackend& backend);

  const ModelConfig& config() const override { return config_; }
  const RankShare& share() const override { return share_; }
  void Begin(const Batch& batch, const KvCacheView& cache) override;
  float* Run(const Batch& batch, const KvCacheView& cache) override;
  float* LogitsOf(int32_t first_row, int32_t num_rows) override;
  uint64_t row_hash() const override { return row_hash_; }
  void FixRope(int32_t length) override;
  absl::Status Reserve(const StepBounds& bounds) override;
  void RecordSteps(int32_t max_seqs, const KvCacheView& cache) override;
  int64_t weight_bytes() const override { return weights_.bytes; }
  uint64_t weights_sum() const override { return weights_.sum; }
  std::vector<std::span<const std::byte>> weights_memory() const override {
    return backend_.space().has_value() ? std::vector<std::span<const std::byte>>{}
                                        : MemoryOf(weights_);
  }

 private:
  // Memory of one step. Elements have the backend's activation type unless a comment names another
  // type. Dimensions 'of the share' count this rank's part only.
  struct Workspace {
    DeviceBuffer residual;  // fp32 [num_tokens, hidden_size], the sum over layers
    DeviceBuffer hidden;    // [num_tokens, hidden_size], input of a sub-layer
    DeviceBuffer delta;     // [num_tokens, hidden_size], output of a sub-layer
    // [num_tokens, embedding_dim], used if embedding_dim is not hidden_size.
    DeviceBuffer embedding;
    DeviceBuffer row_ids;    // int32 [num_tokens]: 0, 1, 2, ...
    DeviceBuffer qkv;        // [num_tokens, (heads + 2 * kv_heads) * head_dim], of the share
    DeviceBuffer attention;  // [num_tokens, heads * head_dim], of the share
    DeviceBuffer mlp;        // [num_tokens, intermediate (twice that if gated)], of the share
    DeviceBuffer activated;  // [num_tokens, intermediate], of the share
    DeviceBuffer rows;       // fp32 [num_logits, hidden_size], residual rows that get logits
    DeviceBuffer last;       // [num_logits, hidden_size], the same rows, normalized
    DeviceBuffer projected;  // [num_logits, embedding_dim], output of project_out
    DeviceBuffer logits;     // fp32 [num_logits, vocab], of the share
    DeviceBuffer gathered;   // fp32 [num_logits, vocab_size], logits of all ranks; on rank 0 only
  };

  // Makes room for max_tokens tokens and max_logits rows of logits. Both counts include padding.
  absl::Status ReserveWorkspace(int32_t max_tokens, int32_t max_logits);
  void Compute(const StepInputs& inputs,
               std::span<const int32_t> num_candidates,
               const KvCacheView& cache);
  void Embed(const StepInputs& inputs);
  void EmbedPositions(const StepInputs& inputs, void* rows, DType dtype);
  // Sums the ranks' parts of [num_rows, width] by AllReduce. Does nothing with one rank.
  void AllReduceIfSplit(const AllReduceParams& params);
  void RunPreNormLayer(int32_t layer, const StepInputs& inputs, const KvCacheView& cache);
  void RunPostNormLayer(int32_t layer, const StepInputs& inputs, const KvCacheView& cache);
  // Attend and RunMlp read workspace_.hidden and write workspace_.delta.
  void Attend(int32_t layer, const StepInputs& inputs, const KvCacheView& cache);
  void RunMlp(int32_t layer, int64_t num_tokens);
  // Adds delta to the residual, unless delta is null. Then sets hidden to norm(residual). If
  // `replace` is true, also sets the residual to hidden, in fp32.
  void Normalize(const NormWeights& norm, const void* delta, bool replace, int64_t num_tokens);
  // Computes the logits of num_logits tokens. rows[i] is the i-th token's row in the residual.
  // num_candidates: see GatherParams.
  void Logits(const int32_t* rows, int64_t num_logits, std::span<const int32_t> num_candidates);
  float* GatheredLogits();
  uint64_t HashRows(int64_t num_tokens) const;

  const ModelConfig config_;
  const RankShare share_;
  std::vector<int64_t> vocab_widths_;  // by rank: number of vocabulary tokens in its share
  const DecoderWeights weights_;
  KernelBackend& backend_;
  std::optional<RopeTable> rope_;
  int32_t rope_length_ = 0;  // RopeLength for which rope_ was made
  Workspace workspace_;
  // A sub-layer's output that the next norm must add to the residual, or null.
  const void* pending_delta_ = nullptr;
  uint64_t row_hash_ = 0;
  StepInputs inputs_;     // of the last Begin
  int32_t num_rows_ = 0;  // tokens of the last Begin's batch, with padding
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_DECODER_MODEL_H_
