// Model is a loaded decoder-only transformer on one rank: tokens and a KV cache in, logits out. The
// ranks of a group compute each batch together, and rank 0 has the logits.
//
// Thread safety: one caller at a time (the executor thread).
// Shapes:        logits [batch.logits_rows.size(), vocab_size], fp32, row-contiguous, owned by the
//                model and valid until the next Forward.
// Cost:          Forward allocates nothing once it has seen its largest batch.
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

  // Of the whole model.
  virtual const ModelConfig& config() const = 0;
  // What of it this rank holds.
  virtual const RankShare& share() const = 0;

  // Runs the batch: writes the K and V of its tokens into cache, then attends through its block
  // tables. Null on ranks that have no logits. REQUIRES: batch invariants; cache geometry equal to
  // the share's; for a share that is not whole, a backend that has joined a group of its size.
  virtual float* Forward(const Batch& batch, const KvCacheView& cache) = 0;

  // Of the rows of the last Forward, all its tokens, as they leave the last layer: every rank has
  // them, and has the same bits. 0 where that is not promised: for a model in one piece, and on
  // GPUs.
  virtual uint64_t row_hash() const = 0;

  // Takes the memory that steps of up to so many tokens and rows of logits need, so that none has
  // to be taken later. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::Status Reserve(int32_t max_tokens, int32_t max_logits) = 0;

  // Bytes of packed weights.
  virtual int64_t weight_bytes() const = 0;

  // Of the rank's part of the weights, as they are in the files. The sums of all ranks add up,
  // modulo 2^64, to the same number for any size of the group. 0 for weights from a seed.
  virtual uint64_t weights_sum() const = 0;

  // Where the weights lie in main memory, for as long as the model lives, never written again;
  // nothing when they are on a device.
  virtual std::vector<std::span<const std::byte>> weights_memory() const = 0;
};

// Called while weights load, for each tensor that is done and many a piece that was read: tensors
// done, tensors in all, bytes read, also of tensors that are not done, bytes in all.
struct LoadProgress {
  int64_t tensors_done = 0;
  int64_t tensors_total = 0;
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
};
using LoadProgressFn = std::function<void(const LoadProgress&)>;

// Called before the first weight is read: what the weights of the rank's share will take in main
// memory, and the buffer for reading them. An error ends the loading.
using AdmitWeightsFn =
    std::function<absl::Status(const ModelConfig&, const RankShare&, int64_t weight_bytes)>;

// Loads a Hugging Face directory: config.json, model.safetensors or model.safetensors.index.json.
// Of the weights it reads those of the rank's share. Everything is validated before the first
// allocation larger than the file. The backend must outlive the model. Errors: kInvalidArgument or
// kNotFound, message "load: <file>: <rule>", reason MODEL_FILE; those of ShareOf and `admit`.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& model_dir,
                                                 KernelBackend& backend,
                                                 const LoadProgressFn& progress,
                                                 RankPlace place = {},
                                                 const AdmitWeightsFn& admit = nullptr);

// A model of the shape in config.json, with weights from a seed: for benchmarks without model
// files. Errors: those of LoadModelConfig and `admit`; kResourceExhausted.
absl::StatusOr<std::unique_ptr<Model>> MakeDummyModel(const std::string& model_dir,
                                                      uint64_t seed,
                                                      KernelBackend& backend,
                                                      RankPlace place = {},
                                                      const AdmitWeightsFn& admit = nullptr);

// Identity of the files: a digest of the config and of the sorted list of (tensor name,
// dtype, shape, file size and a sample of its bytes); equal on workers that loaded
// the same files. What is between the samples is compared by weights_sum().
absl::StatusOr<uint64_t> HashModelFiles(const std::string& model_dir);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_MODEL_H_
