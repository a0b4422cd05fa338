// SplitModel is a model on several ranks, which are threads here, each with a pool of its own.
#ifndef QUIRE_TESTS_WORKER_MODEL_SPLIT_MODEL_H_
#define QUIRE_TESTS_WORKER_MODEL_SPLIT_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/collective/communicator.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/random.h"
#include "tests/support/rank_group.h"
#include "tests/worker/model/model_runner.h"
#include "worker/model/model.h"

namespace quire {

using Logits = std::vector<std::vector<float>>;

inline constexpr int64_t kBlocks = 64;

// Null if this machine lacks the instruction set.
inline std::unique_ptr<KernelBackend> MakeBackend(const std::string& isa, int num_threads = 1) {
  auto backend = CreateCpuBackend({.num_threads = num_threads, .isa = isa});
  return backend.ok() ? std::move(*backend) : nullptr;
}

class SplitModel {
 public:
  SplitModel(const std::string& model_dir, const std::string& isa, int32_t size, DType dtype)
      : SplitModel(model_dir, isa, ConnectRanks(size), dtype) {}

  SplitModel(const std::string& model_dir,
             const std::string& isa,
             const std::vector<std::shared_ptr<Communicator>>& group,
             DType dtype)
      : size_(static_cast<int32_t>(group.size())) {
    for (int32_t rank = 0; rank < size_; ++rank) {
      Rank& r = ranks_.emplace_back();
      // The number of threads does not change bits, so the ranks have different numbers.
      r.backend = MakeBackend(isa, 1 + rank % 2);
      auto model = LoadModel(model_dir, *r.backend, nullptr, {.rank = rank, .size = size_});
      EXPECT_TRUE(model.ok()) << model.status();
      r.model = *std::move(model);
      if (size_ > 1) {
        EXPECT_TRUE(r.backend->JoinGroup(group[static_cast<size_t>(rank)]).ok());
      }
      r.runner = std::make_unique<ModelRunner>(*r.model, *r.backend, kBlocks, dtype);
    }
  }

  void AddSequence() {
    for (Rank& rank : ranks_) {
      rank.runner->AddSequence();
    }
  }

  // Runs a batch on all ranks and returns the logits, which rank 0 has.
  Logits Run(const std::vector<ModelRunner::Slice>& slices) {
    std::vector<Logits> logits(ranks_.size());
    OnAllRanks(size_, [&](int32_t rank) {
      const auto i = static_cast<size_t>(rank);
      logits[i] = ranks_[i].runner->Run(slices);
    });
    for (size_t rank = 1; rank < logits.size(); ++rank) {
      EXPECT_TRUE(logits[rank].empty());
    }
    return logits.front();
  }

  // The row hashes of the last Run, by rank.
  std::vector<uint64_t> RowHashes() const {
    std::vector<uint64_t> hashes;
    for (const Rank& rank : ranks_) {
      hashes.push_back(rank.model->row_hash());
    }
    return hashes;
  }

  // The sum over all ranks.
  uint64_t weights_sum() const {
    uint64_t sum = 0;
    for (const Rank& rank : ranks_) {
      sum += rank.model->weights_sum();
    }
    return sum;
  }

  int64_t weight_bytes(size_t rank) const { return ranks_[rank].model->weight_bytes(); }

 private:
  struct Rank {
    std::unique_ptr<KernelBackend> backend;
    std::unique_ptr<Model> model;
    std::unique_ptr<ModelRunner> runner;
  };

  int32_t size_;
  std::vector<Rank> ranks_;
};

// Feeds two sequences: chunks of prompts in one batch, then single tokens, as a server would.
inline std::vector<Logits> Answers(SplitModel& model, int32_t vocab_size) {
  Random random(7);
  const auto tokens = [&](int32_t count) {
    std::vector<TokenId> ids;
    for (int32_t i = 0; i < count; ++i) {
      ids.push_back(random.Below(vocab_size));
    }
    return ids;
  };
  model.AddSequence();
  model.AddSequence();
  std::vector<Logits> answers;
  answers.push_back(model.Run({{.sequence = 0, .tokens = tokens(19)}}));
  answers.push_back(
      model.Run({{.sequence = 0, .tokens = tokens(5)}, {.sequence = 1, .tokens = tokens(11)}}));
  for (int step = 0; step < 3; ++step) {
    answers.push_back(
        model.Run({{.sequence = 0, .tokens = tokens(1)}, {.sequence = 1, .tokens = tokens(1)}}));
  }
  return answers;
}

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_MODEL_SPLIT_MODEL_H_
