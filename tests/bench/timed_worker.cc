#include "tests/bench/timed_worker.h"

#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/check.h"
#include "common/base/log.h"
#include "kernels/collective/peer_listener.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/rpc/worker_server.h"
#include "worker/rpc/worker_service.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 64;
constexpr int64_t kPoolBytes = int64_t{1} << 30;

// Writes no KV and likes every token equally.
class TimedModel : public Model {
 public:
  explicit TimedModel(const TimedWorker& worker)
      : config_(worker.config), forward_(absl::Nanoseconds(worker.forward_ns)) {
    share_.rank = worker.place.rank;
    share_.size = worker.place.size;
    share_.kv_heads = {.begin = worker.place.rank, .count = 1};
    share_.vocab = VocabOf(config_, worker.place);
  }
  const ModelConfig& config() const override { return config_; }
  const RankShare& share() const override { return share_; }
  float* Run(const Batch& batch, const KvCacheView& /*cache*/) override {
    absl::SleepFor(forward_);
    logits_.assign(batch.logits_rows.size() * kVocabSize, 0.0F);
    return share_.rank == 0 ? logits_.data() : nullptr;
  }
  float* LogitsOf(int32_t /*first_row*/, int32_t /*num_rows*/) override { return nullptr; }
  absl::Status Reserve(const StepBounds& /*bounds*/) override { return absl::OkStatus(); }
  uint64_t row_hash() const override { return 0; }
  int64_t weight_bytes() const override { return 0; }
  uint64_t weights_sum() const override { return 0; }
  std::vector<std::span<const std::byte>> weights_memory() const override { return {}; }

 private:
  const ModelConfig config_;
  const absl::Duration forward_;
  RankShare share_;
  std::vector<float> logits_;
};

}  // namespace

ModelConfig TimedConfig(int32_t max_model_len) {
  ModelConfig config;
  config.vocab_size = kVocabSize;
  config.num_layers = 1;
  config.num_heads = kMaxRanks;
  config.num_kv_heads = kMaxRanks;
  config.head_dim = 2;
  config.max_position_embeddings = max_model_len;
  return config;
}

void RunTimedWorker(const TimedWorker& worker,
                    const std::function<void(const Address&)>& on_listening) {
  SetLogLevel(LogLevel::kWarning);
  TimedModel model(worker);
  const std::unique_ptr<KernelBackend> backend = *CreateCpuBackend({.num_threads = 1, .isa = ""});
  auto peers = PeerListener::AtPath(worker.peers_path, worker.place.size);
  QUIRE_CHECK(peers.ok());
  StepExecutor executor(model, *backend, {.bytes = kPoolBytes}, nullptr, peers->get());
  WorkerProgress progress(*backend);
  WorkerService service(progress);
  service.Serve({.version = "bench", .model_hash = 0, .determinism_fingerprint = "timed"},
                executor);
  const auto server = WorkerServer::Start(worker.listen, service);
  QUIRE_CHECK(server.ok());
  on_listening((*server)->address());
  for (;;) {
    pause();
  }
}

}  // namespace quire
