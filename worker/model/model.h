// Model is a loaded decoder-only transformer on one rank: tokens and a KV cache in, logits out. The
// ranks of a group compute each batch together, and rank 0 has the logits.
//
// Thread safety: one caller at a time (the executor thread).
// Shapes:        logits [batch.logits_rows.size(), vocab_size], fp32, row-contiguous, owned by the
//                model and valid until the next Run.
// Cost:          Begin allocates only if a batch or a position is larger than in all earlier
//                calls.
// Source:        one implementation serves Llama 2/3, Mistral, Qwen2, Qwen3, OPT and BLOOM;
//                ModelConfig says which parts are present.
#ifndef QUIRE_WORKER_MODEL_MODEL_H_
#define QUIRE_WORKER_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/model_config.h"
#include "common/model/rank_share.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/batch.h"

namespace quire {

class Model {
 public:
  virtual ~Model() = default;

  // Configuration of the whole model.
  virtual const ModelConfig& config() const = 0;
  // Part of the model that this rank holds.
  virtual const RankShare& share() const = 0;

  // Hands the batch to the backend, computes nothing and writes nothing to the cache. May be called
  // ahead of the step, with a predicted batch. A later Begin replaces a wrong prediction. REQUIRES:
  // the batch's invariants hold; the cache has the model's geometry with the KV heads of this
  // rank's share; if the model is split, the backend has joined a group of share().size ranks.
  virtual void Begin(const Batch& /*batch*/, const KvCacheView& /*cache*/) {}

  // Runs the batch: writes the K and V of the batch's tokens into cache, then attends through the
  // batch's block tables or windows. Returns null on ranks without logits. REQUIRES: the last Begin
  // had the same batch and cache.
  virtual float* Run(const Batch& batch, const KvCacheView& cache) = 0;

  float* Forward(const Batch& batch, const KvCacheView& cache) {
    Begin(batch, cache);
    return Run(batch, cache);
  }

  // Returns the logits of num_rows consecutive tokens of the last Run's batch, from token first_row
  // of the batch on. Overwrites the logits that Run returned. Returns null on ranks without logits.
  // REQUIRES: no Begin since that Run; every rank calls this with the same arguments; num_rows is
  // in [1, max_seqs] of the last Reserve, which must have succeeded.
  virtual float* LogitsOf(int32_t first_row, int32_t num_rows) = 0;

  // Hash of all tokens' rows after the last layer of the last Run. The hash is the same on all
  // ranks unless a rank made an error. 0 if the hashes are not compared: for a model on one rank,
  // and on GPUs, since bits may differ between GPUs.
  virtual uint64_t row_hash() const = 0;

  // Computes RoPE for contexts of this length. length: RopeLength of the model, or 0 if its RoPE
  // does not depend on the length, as with most models. An epoch with another length cannot go on,
  // because its cached keys were rotated by other frequencies.
  virtual void FixRope(int32_t /*length*/) {}

  // Allocates all memory for steps within these bounds, including the backend's memory, so that
  // these steps allocate nothing on a device. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::Status Reserve(const StepBounds& bounds) = 0;

  // Lets the backend record steps of up to max_seqs sequences, to replay them later
  // (KernelBackend::BatchesToRecord). Writes nothing to the cache. REQUIRES: as Begin.
  virtual void RecordSteps(int32_t /*max_seqs*/, const KvCacheView& /*cache*/) {}

  // Bytes of packed weights.
  virtual int64_t weight_bytes() const = 0;

  // WeightsSum of the rank's part of the weights, as stored in the files. If several ranks hold the
  // same part, only one of them counts it. So the sums of all ranks add up, modulo 2^64, to the
  // same number for any group size. 0 for weights from a seed.
  virtual uint64_t weights_sum() const = 0;

  // Returns the weights in main memory, valid while the model lives and never written again. Empty
  // if the weights are on a device.
  virtual std::vector<std::span<const std::byte>> weights_memory() const = 0;
};

// State of loading, reported after each tensor and, within large tensors, after pieces. bytes_done
// includes pieces of tensors that are not done yet.
struct LoadProgress {
  int64_t tensors_done = 0;
  int64_t tensors_total = 0;
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
};
using LoadProgressFn = std::function<void(const LoadProgress&)>;

// Called before the first weight is read. weight_bytes: main memory for the weights of the rank's
// share and for the buffer into which they are read. An error ends the loading.
using AdmitWeightsFn =
    std::function<absl::Status(const ModelConfig&, const RankShare&, int64_t weight_bytes)>;

// Loads a GGUF file, or a Hugging Face directory: config.json, and either model.safetensors or
// model.safetensors.index.json with its shards. Reads only the weights of the rank's share. All
// files are validated before memory for weights is allocated. Weights in a format that the backend
// cannot multiply are decoded to bf16. The backend must outlive the model.
// Errors: kInvalidArgument or kNotFound, message "load: <file>: <rule>", reason MODEL_FILE;
// kResourceExhausted; those of ShareOf and `admit`.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& model_path,
                                                 KernelBackend& backend,
                                                 const LoadProgressFn& progress,
                                                 RankPlace place = {},
                                                 const AdmitWeightsFn& admit = nullptr);

// Makes the model that config.json describes, with random weights from a seed, so that benchmarks
// need no weight files. Errors: those of LoadModelConfig, ShareOf and `admit`; kResourceExhausted.
absl::StatusOr<std::unique_ptr<Model>> MakeDummyModel(const std::string& model_dir,
                                                      uint64_t seed,
                                                      KernelBackend& backend,
                                                      RankPlace place = {},
                                                      const AdmitWeightsFn& admit = nullptr);

// Returns a digest that identifies the model files. It covers the config, the file sizes and,
// sorted by name, each tensor's name, type, shape and samples of its bytes. Model::weights_sum
// covers the bytes between the samples.
absl::StatusOr<uint64_t> HashModelFiles(const std::string& model_path);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_MODEL_H_
