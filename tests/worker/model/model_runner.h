// ModelRunner drives a Model by hand: it keeps a KV pool whose blocks it hands out in a scattered
// order, builds batches from slices of sequences and reads the logits.
#ifndef QUIRE_TESTS_WORKER_MODEL_MODEL_RUNNER_H_
#define QUIRE_TESTS_WORKER_MODEL_MODEL_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/batch.h"
#include "worker/model/model.h"

namespace quire {

struct GoldenStep {
  TokenId token = 0;
  double logprob = 0.0;
  std::vector<TokenId> top_tokens;
  std::vector<double> top_logprobs;
};

struct GoldenCase {
  std::vector<TokenId> prompt;
  std::vector<GoldenStep> steps;
};

// The names of the models in a folder of goldens, sorted.
std::vector<std::string> GoldenModels(const std::string& folder);

// Reads golden.json as make_model_goldens.py writes it. Ends the test program if that fails.
std::vector<GoldenCase> ReadGolden(const std::string& path);

// log softmax of a row, in double.
std::vector<double> LogSoftmax(std::span<const float> logits);

// Copies floats from a backend's memory to host memory. Waits for the backend's earlier calls.
std::vector<float> ReadBack(KernelBackend& backend, const void* device, int64_t count);

class ModelRunner {
 public:
  static constexpr int32_t kBlockSizeTokens = 16;

  // The cache's type is that of the activations unless one is given.
  ModelRunner(Model& model,
              KernelBackend& backend,
              int64_t num_blocks,
              std::optional<DType> kv_cache_dtype = std::nullopt);

  // A new sequence; returns its number.
  int AddSequence();

  struct Slice {
    int sequence = 0;
    std::vector<TokenId> tokens;  // appended to the sequence
    bool are_of_prompt = false;
  };

  const KvCacheView& cache() const { return cache_; }
  // The blocks of a sequence.
  const std::vector<BlockId>& BlocksOf(int sequence) const {
    return sequences_[static_cast<size_t>(sequence)].blocks;
  }

  // Runs one batch of slices. Returns the logits of the last token of each, or none on a rank that
  // has none.
  std::vector<std::vector<float>> Run(const std::vector<Slice>& slices);

  // Runs one batch of slices. Returns the logits of each token, in passes of at most max_rows rows.
  std::vector<std::vector<float>> RunAndScore(const std::vector<Slice>& slices, int32_t max_rows);

  // Runs one batch of slices without asking for logits.
  void RunWithoutLogits(const std::vector<Slice>& slices);

  // Appends the tokens of a prompt to one sequence in pieces of `chunk`. Returns the logits after
  // the last token.
  std::vector<float> Feed(int sequence, std::span<const TokenId> tokens, int64_t chunk);

 private:
  struct Sequence {
    int32_t num_tokens = 0;
    std::vector<BlockId> blocks;
  };

  // Returns the rows of logits that `on_device` points to.
  std::vector<std::vector<float>> ReadRows(const float* on_device, size_t num_rows);
  BlockId TakeBlock();
  Batch MakeBatch(const std::vector<Slice>& slices);

  Model& model_;
  KernelBackend& backend_;
  std::unique_ptr<DeviceMemory> pool_;
  KvCacheView cache_;
  std::vector<BlockId> free_blocks_;
  std::vector<Sequence> sequences_;
};

// The likeliest token.
TokenId Greedy(const std::vector<float>& logits);

// The distance of two rows of logits: relative, L2. NaN if a logit is not finite.
double Distance(const std::vector<float>& got, const std::vector<float>& expected);

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_MODEL_MODEL_RUNNER_H_
