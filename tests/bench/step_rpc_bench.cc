// What the step RPC costs beside the model: a model that answers at once, behind the real worker
// server, driven by the scheduler's own worker group. One iteration is one round trip.
//
//   p50_us, p99_us  of the round trip as the loop sees it, encoding and both threads included
//   worker_us       mean of what the worker spent on checks, batch and sampling
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cpu/cpu_backend.h"
#include "scheduler/rpc/grpc_worker_group.h"
#include "worker/rpc/worker_server.h"
#include "worker/rpc/worker_service.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 8;
constexpr int32_t kBlockSize = 256;
constexpr int32_t kBlocksPerSequence = 64;  // steps before the sequences are full: 16384
constexpr int32_t kMaxModelLen = kBlockSize * kBlocksPerSequence;
constexpr int kIterations = 4000;

// Writes no KV and likes every token equally.
class InstantModel : public Model {
 public:
  InstantModel() {
    config_.vocab_size = kVocabSize;
    config_.num_layers = 1;
    config_.num_heads = 1;
    config_.num_kv_heads = 1;
    config_.head_dim = 2;
    config_.max_position_embeddings = kMaxModelLen;
    share_.kv_heads.count = 1;
  }
  const ModelConfig& config() const override { return config_; }
  const RankShare& share() const override { return share_; }
  float* Forward(const Batch& batch, const KvCacheView& /*cache*/) override {
    logits_.assign(batch.logits_rows.size() * kVocabSize, 0.0F);
    return logits_.data();
  }
  absl::Status Reserve(int32_t /*max_tokens*/, int32_t /*max_logits*/) override {
    return absl::OkStatus();
  }
  uint64_t row_hash() const override { return 0; }
  int64_t weight_bytes() const override { return 0; }
  uint64_t weights_sum() const override { return 0; }

 private:
  ModelConfig config_;
  RankShare share_;
  std::vector<float> logits_;
};

// A worker and a scheduler's end of its stream.
class Session {
 public:
  Session(const Address& address, int32_t num_sequences)
      : backend_(*CreateCpuBackend({.num_threads = 1, .isa = ""})),
        executor_(model_, *backend_, {.bytes = int64_t{4} << 30, .num_blocks_override = 0}),
        progress_(*backend_),
        service_(progress_) {
    service_.Serve({.version = "bench", .model_hash = 0, .determinism_fingerprint = "instant"},
                   executor_);
    auto server = WorkerServer::Start(address, service_);
    QUIRE_CHECK(server.ok());
    server_ = *std::move(server);
    GroupSettings settings;
    settings.model = model_.config();
    settings.block_size_tokens = kBlockSize;
    settings.num_blocks_override = 1 + std::max(1, num_sequences) * kBlocksPerSequence;
    settings.max_sequences = std::max(1, num_sequences);
    settings.max_tokens_per_step = std::max(1, num_sequences);
    workers_ = std::make_unique<GrpcWorkerGroup>(
        std::vector<Address>{server_->address()},
        settings,
        GroupTiming(),
        &inbox_,
        GroupListener{.on_refusal = [](const absl::Status&) {}, .on_ranks = [](const auto&) {}});
    workers_->Start();
    const auto ready = Await<GroupReady>();
    plan_.header = {.scheduler_incarnation = ready.scheduler_incarnation,
                    .group_epoch = ready.group_epoch,
                    .step_id = 0};
    Introduce(num_sequences);
  }

  // One step, there and back. The worker's share of it, in microseconds.
  int64_t Exchange() {
    ++plan_.header.step_id;
    plan_.digest = DigestOf(plan_);
    workers_->SendStep(plan_);
    const auto reply = Await<StepReply>();
    QUIRE_CHECK(reply.result.sampled.size() == plan_.slices.size());
    const StepTimings& timings = reply.result.timings;
    return timings.build_us + timings.forward_us + timings.sample_us;
  }

 private:
  // The first step introduces all sequences with all the blocks they will need; what is left of the
  // plan is a steady decode.
  void Introduce(int32_t num_sequences) {
    for (int32_t i = 0; i < num_sequences; ++i) {
      SequenceIntroduction introduction;
      introduction.handle = static_cast<SequenceHandle>(i);
      introduction.token_ids = {1};
      introduction.num_prompt_tokens = 1;
      introduction.sampling.temperature = 0.0F;
      for (int32_t k = 0; k < kBlocksPerSequence; ++k) {
        introduction.block_ids.push_back(1 + i * kBlocksPerSequence + k);
      }
      plan_.introductions.push_back(introduction);
      plan_.slices.push_back({.handle = introduction.handle, .num_tokens = 1, .new_block_ids = {}});
    }
    Exchange();
    plan_.introductions.clear();
  }

  // Events of other kinds are dropped.
  template <typename Event>
  Event Await() {
    for (;;) {
      while (events_.empty()) {
        events_ = inbox_.TakeAll(absl::Seconds(1));
      }
      LoopEvent event = std::move(events_.front());
      events_.pop_front();
      if (auto* wanted = std::get_if<Event>(&event)) {
        return std::move(*wanted);
      }
    }
  }

  InstantModel model_;
  std::unique_ptr<KernelBackend> backend_;
  StepExecutor executor_;
  WorkerProgress progress_;
  WorkerService service_;
  std::unique_ptr<WorkerServer> server_;
  Inbox inbox_{100};
  std::deque<LoopEvent> events_;
  std::unique_ptr<GrpcWorkerGroup> workers_;
  StepPlan plan_;
};

double Percentile(std::vector<double>& values, double fraction) {
  auto nth = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + nth, values.end());
  return values[static_cast<size_t>(nth)];
}

void BenchStep(benchmark::State& state, const Address& address, int32_t num_sequences) {
  SetLogLevel(LogLevel::kWarning);
  Session session(address, num_sequences);
  std::vector<double> micros;
  int64_t worker_micros = 0;
  for ([[maybe_unused]] auto _ : state) {
    Instant begin = SteadyNow();
    worker_micros += session.Exchange();
    micros.push_back(static_cast<double>(SteadyNow() - begin) / 1e3);
  }
  state.counters["p50_us"] = Percentile(micros, 0.5);
  state.counters["p99_us"] = Percentile(micros, 0.99);
  state.counters["worker_us"] =
      static_cast<double>(worker_micros) / static_cast<double>(micros.size());
}

Address UnixSocket() {
  return {.unix_path = "/tmp/quire_step_rpc_bench_" + std::to_string(getpid()) + ".sock",
          .host = "",
          .port = 0};
}

Address Loopback() { return {.unix_path = "", .host = "127.0.0.1", .port = 0}; }

void StepOverUnixSocket(benchmark::State& state) {
  BenchStep(state, UnixSocket(), static_cast<int32_t>(state.range(0)));
}
void StepOverTcp(benchmark::State& state) {
  BenchStep(state, Loopback(), static_cast<int32_t>(state.range(0)));
}

// Sequences in the step; 0 is a ping.
BENCHMARK(StepOverUnixSocket)
    ->Arg(0)
    ->Arg(1)
    ->Arg(256)
    ->Arg(1024)
    ->Iterations(kIterations)
    ->UseRealTime();
BENCHMARK(StepOverTcp)->Arg(0)->Arg(1)->Arg(256)->Arg(1024)->Iterations(kIterations)->UseRealTime();

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
