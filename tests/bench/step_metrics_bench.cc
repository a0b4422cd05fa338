// step_metrics_bench: the cost of metrics to the threads that do steps.
//
// a worker's executor:  in a pair, a decode step with an observer and without one, and the observer
//                      alone. The model does nothing, so the rest is the executor's own work.
// the scheduler's loop: all its calls of its observer in a decode step.
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/base/check.h"
#include "kernels/reference/reference_backend.h"
#include "scheduler/metrics/scheduler_metrics.h"
#include "tests/support/with_digest.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/model/model.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 32;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kMaxPositions = 1 << 20;

class NoModel : public Model {
 public:
  NoModel() {
    config_.vocab_size = kVocabSize;
    config_.num_layers = 1;
    config_.num_heads = 1;
    config_.num_kv_heads = 1;
    config_.head_dim = 4;
    config_.hidden_size = 4;
    config_.max_position_embeddings = kMaxPositions;
    share_ = *ShareOf(config_, {});
  }
  const ModelConfig& config() const override { return config_; }
  const RankShare& share() const override { return share_; }
  float* Run(const Batch& batch, const KvCacheView& /*cache*/) override {
    logits_.assign(batch.logits_rows.size() * kVocabSize, 0.0F);
    return logits_.data();
  }
  float* LogitsOf(int32_t /*first_row*/, int32_t /*num_rows*/) override { return nullptr; }
  absl::Status Reserve(const StepBounds& /*bounds*/) override { return absl::OkStatus(); }
  uint64_t row_hash() const override { return 1; }
  int64_t weight_bytes() const override { return 0; }
  uint64_t weights_sum() const override { return 0; }
  std::vector<std::span<const std::byte>> weights_memory() const override { return {}; }

 private:
  ModelConfig config_;
  RankShare share_;
  std::vector<float> logits_;
};

// Decodes with so many sequences, each of which gets a block every 16 steps.
void DecodeSteps(benchmark::State& state, StepObserver* observer) {
  const auto num_sequences = static_cast<int32_t>(state.range(0));
  NoModel model;
  const auto backend = CreateReferenceBackend();
  StepExecutor executor(model, *backend, {.bytes = int64_t{1} << 30}, nullptr, nullptr, observer);
  StepPlan plan;
  StepPlan first;
  for (int32_t i = 0; i < num_sequences; ++i) {
    const auto handle = static_cast<SequenceHandle>(i);
    SequenceIntroduction sequence = {.handle = handle, .token_ids = {1}, .num_prompt_tokens = 1};
    sequence.sampling.temperature = 0.0F;
    first.introductions.push_back(std::move(sequence));
    first.slices.push_back({.handle = handle, .num_tokens = 1, .new_block_ids = {i + 1}});
    plan.slices.push_back({.handle = handle, .num_tokens = 1, .new_block_ids = {}});
  }
  uint64_t epoch = 0;
  uint64_t step = kBlockSize;  // the next one needs blocks: a new epoch instead
  const auto execute = [&](StepPlan& next) {
    next.header = {.scheduler_incarnation = 1, .group_epoch = epoch, .step_id = ++step};
    next.digest = DigestOf(next);
    QUIRE_CHECK(executor.Execute(next).ok());
  };
  for (auto _ : state) {
    if (step == kBlockSize) {
      state.PauseTiming();
      step = 0;
      QUIRE_CHECK(executor
                      .BeginEpoch({.scheduler_incarnation = 1,
                                   .group_epoch = ++epoch,
                                   .limits = {.num_blocks = num_sequences + 1,
                                              .block_size_tokens = kBlockSize,
                                              .max_sequences = num_sequences,
                                              .max_tokens_per_step = num_sequences,
                                              .max_model_len = kMaxPositions}})
                      .ok());
      execute(first);
      state.ResumeTiming();
    }
    execute(plan);
  }
}

WorkerMetrics& Metrics() {
  static WorkerMetrics metrics;
  return metrics;
}

void BM_DecodeStepUnobserved(benchmark::State& state) { DecodeSteps(state, nullptr); }
void BM_DecodeStepObserved(benchmark::State& state) { DecodeSteps(state, &Metrics()); }
BENCHMARK(BM_DecodeStepUnobserved)->Arg(1)->Arg(64)->Arg(256);
BENCHMARK(BM_DecodeStepObserved)->Arg(1)->Arg(64)->Arg(256);

void BM_ObserverAlone(benchmark::State& state) {
  int64_t nanos = 1;
  for (auto _ : state) {
    nanos = nanos * 3 % 100'000'007;
    Metrics().OnStep({.build_ns = nanos / 100,
                      .forward_ns = nanos,
                      .sample_ns = nanos / 50,
                      .num_tokens = 64,
                      .num_sampled = 64});
  }
}
BENCHMARK(BM_ObserverAlone);

void BM_Scrape(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Metrics().Collect());
  }
}
BENCHMARK(BM_Scrape);

void BM_LoopStep(benchmark::State& state) {
  const auto num_sequences = static_cast<int32_t>(state.range(0));
  MetricsRegistry registry;
  SchedulerMetrics metrics(&registry, "1", "model", 2048, /*has_prefix_caching=*/true);
  LoopObserver& observer = metrics;
  CoreStats stats = {.num_blocks = 2048};
  int64_t nanos = 1;
  for (auto _ : state) {
    nanos = nanos * 3 % 100'000'007;
    observer.OnStep({.plan_ns = nanos / 100,
                     .send_ns = nanos / 200,
                     .round_trip_ns = nanos,
                     .apply_ns = nanos / 300,
                     .publish_ns = nanos / 50,
                     .worker = {.forward_us = nanos / 1000},
                     .num_sequences = num_sequences,
                     .num_tokens = num_sequences});
    for (int32_t i = 0; i < num_sequences; ++i) {
      observer.OnInterToken(nanos);  // a step has one time for all that it gave
    }
    stats.num_running_requests = num_sequences;
    stats.num_tokens_committed += num_sequences;
    stats.num_blocks_allocated += num_sequences / 16;
    observer.OnStats(stats, {});
  }
}
BENCHMARK(BM_LoopStep)->Arg(1)->Arg(64)->Arg(256)->Arg(1024);

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
