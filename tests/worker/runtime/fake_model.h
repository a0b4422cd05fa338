// FakeModel is a model whose next token can be said without it: a hash of all tokens so far. It
// finds those tokens only through the KV cache and the batch: every token is written into its slot
// as a key, and the logits of a row are made from what the row's block table, or its window, leads
// to. So a wrong slot, table, window, position, length or copy gives another token.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_WORKER_RUNTIME_FAKE_MODEL_H_
#define QUIRE_TESTS_WORKER_RUNTIME_FAKE_MODEL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "worker/model/model.h"

namespace quire {

class FakeModel : public Model {
 public:
  static constexpr int32_t kVocabSize = 50;
  static constexpr int32_t kMaxPositions = 256;
  static constexpr uint64_t kRowHash = 77;

  FakeModel();

  // The token that greedy sampling gives after these.
  static TokenId NextToken(std::span<const TokenId> token_ids);

  const ModelConfig& config() const override { return config_; }
  const RankShare& share() const override { return share_; }
  // Run expects the batch of the last Begin.
  void Begin(const Batch& batch, const KvCacheView& cache) override;
  float* Run(const Batch& batch, const KvCacheView& cache) override;
  float* LogitsOf(int32_t first_row, int32_t num_rows) override;
  absl::Status Reserve(const StepBounds& bounds) override {
    return on_reserve_ == nullptr ? absl::OkStatus() : on_reserve_(bounds);
  }
  uint64_t row_hash() const override { return kRowHash; }
  int64_t weight_bytes() const override { return 0; }
  uint64_t weights_sum() const override { return 0; }
  std::vector<std::span<const std::byte>> weights_memory() const override { return {}; }

  // Makes the model say that it is one of so many ranks.
  void SetNumRanks(int32_t size) { share_.size = size; }

  // Called at the start of each Run.
  void OnRun(std::function<void(const Batch&)> hook) { on_run_ = std::move(hook); }
  // Called by each Reserve, which returns the hook's status.
  void OnReserve(std::function<absl::Status(const StepBounds&)> hook) {
    on_reserve_ = std::move(hook);
  }
  int num_begins() const { return num_begins_; }
  int num_runs() const { return num_runs_; }
  // Numbers of rows that LogitsOf was asked for.
  const std::vector<int32_t>& rows_asked() const { return rows_asked_; }

  // The next Run gives rows of NaN.
  void PoisonNextLogits() { is_poisoned_ = true; }
  // LogitsOf gives rows of NaN.
  void PoisonScores() { are_scores_poisoned_ = true; }

 private:
  ModelConfig config_;
  RankShare share_;
  std::function<void(const Batch&)> on_run_;
  std::function<absl::Status(const StepBounds&)> on_reserve_;
  // Writes logits of the batch's row to logits_[index].
  void WriteLogits(int32_t row, size_t index);

  Batch begun_;
  Batch batch_;
  KvCacheView cache_;
  std::vector<float> logits_;
  std::vector<int32_t> rows_asked_;
  int num_begins_ = 0;
  int num_runs_ = 0;
  bool is_poisoned_ = false;
  bool are_scores_poisoned_ = false;
};

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_RUNTIME_FAKE_MODEL_H_
