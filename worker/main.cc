// quire_worker: weights, the KV pool and the kernels of one rank, behind proto/v1/worker.proto.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/file_limit.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/flags/process.h"
#include "common/model/digest.h"
#include "common/wire/grpc_log.h"
#include "kernels/collective/peer_listener.h"
#include "worker/kv_cache/available_memory.h"
#include "worker/memory_plan.h"
#include "worker/model/load_progress.h"
#include "worker/model/model.h"
#include "worker/rpc/worker_progress.h"
#include "worker/rpc/worker_server.h"
#include "worker/rpc/worker_service.h"
#include "worker/runtime/fail_points.h"
#include "worker/runtime/weight_scrubber.h"
#include "worker/worker_backend.h"
#include "worker/worker_config.h"

namespace {

constexpr char kName[] = "quire_worker: ";

struct LoadedModel {
  std::unique_ptr<quire::Model> model;
  uint64_t hash = 0;
  quire::KvCacheBudget pools = {};  // planned, before it was loaded
};

absl::StatusOr<LoadedModel> LoadWeights(const quire::WorkerConfig& config,
                                        const quire::LoadProgressFn& progress,
                                        const quire::AdmitWeightsFn& admit,
                                        quire::KernelBackend& backend) {
  const std::string& dir = config.model_dir;
  if (config.has_dummy_weights) {
    QUIRE_ASSIGN_OR_RETURN(auto model,
                           quire::MakeDummyModel(dir, /*seed=*/0, backend, config.place, admit));
    return LoadedModel{.model = std::move(model)};
  }
  QUIRE_ASSIGN_OR_RETURN(auto model, quire::LoadModel(dir, backend, progress, config.place, admit));
  QUIRE_ASSIGN_OR_RETURN(uint64_t hash, quire::HashModelFiles(dir));
  if (config.gpu.quantization == quire::GpuQuantization::kFp8) {
    // Other weights, then: no worker without them may go on where this one stopped.
    quire::Digest digest;
    digest.AddInt(hash);
    digest.AddBytes("fp8");
    hash = digest.value();
  }
  return LoadedModel{.model = std::move(model), .hash = hash};
}

// Beside the scheduler's address: a socket of the same name and more, or another port of the same
// host. Null where there are no other ranks.
absl::StatusOr<std::unique_ptr<quire::PeerListener>> ListenForRanks(
    const quire::WorkerConfig& config) {
  if (config.place.size == 1) {
    return nullptr;
  }
  const quire::Address& listen = config.listen;
  if (listen.is_unix()) {
    return quire::PeerListener::AtPath(listen.unix_path + ".ranks", config.ranks_on_host);
  }
  std::string public_host = listen.host;
  if (listen.host == "0.0.0.0" || listen.host == "::") {
    std::array<char, 256> name = {};
    static_cast<void>(::gethostname(name.data(), name.size() - 1));
    public_host = name.data();
  }
  return quire::PeerListener::AtHost(listen.host, 0, public_host);
}

void EndWithChangedWeights() {
  quire::LogError("the weights have changed in memory; the worker ends");
  // No destructor waits for the step that is under way: its tokens are worth nothing.
  std::_Exit(quire::kExitDevice);
}

void StopNow(quire::WorkerServer& server, int signal) {
  quire::LogInfo("worker stops", {{"signal", absl::StrCat(signal)}});
  server.Shutdown();
}

// The value, or the end of a process that listens already.
template <typename T>
T ValueOrStop(absl::StatusOr<T> value,
              quire::WorkerServer& server,
              const char* prefix,
              int exit_code) {
  if (!value.ok()) {
    server.Shutdown();
  }
  return quire::ValueOrExit(std::move(value), prefix, exit_code);
}

// Loading takes minutes when the model is large: whoever watches is told how far it is, and signals
// to stop are looked for.
class Loader {
 public:
  Loader(const sigset_t& signals, quire::WorkerProgress& progress, quire::WorkerServer& server)
      : signals_(signals), progress_(progress), server_(server) {}

  LoadedModel Load(const quire::WorkerConfig& config,
                   const quire::FailPoints& fail_points,
                   quire::KernelBackend& backend) {
    fail_points.InLoad([this] {
      progress_.Tick();
      StopIfAsked();
    });
    quire::LoadProgressBar bar(STDERR_FILENO);
    auto tell = [&](const quire::LoadProgress& done) {
      bar.Update(done);
      progress_.Load(done.bytes_done, done.bytes_total);
      StopIfAsked();
    };
    quire::KvCacheBudget pools;
    auto admit = [&](const quire::ModelConfig& model,
                     const quire::RankShare& share,
                     int64_t weight_bytes) -> absl::Status {
      const quire::HostMemory host = {.total_bytes = quire::TotalMemoryBytes(),
                                      .available_bytes = quire::AvailableMemoryBytes()};
      QUIRE_ASSIGN_OR_RETURN(pools,
                             quire::PlanMemory(config, host, backend, model, share, weight_bytes));
      return absl::OkStatus();
    };
    absl::StatusOr<LoadedModel> loaded = LoadWeights(config, tell, admit, backend);
    const std::string reason = quire::ReasonOf(loaded.status());
    LoadedModel model =
        ValueOrStop(std::move(loaded),
                    server_,
                    reason == "MEMORY" ? kName : "load: ",
                    reason == "TENSOR_PARALLEL_SIZE" ? quire::kExitUsage : quire::kExitModel);
    model.pools = pools;
    return model;
  }

 private:
  void StopIfAsked() {
    constexpr timespec kNoWait = {};
    if (const int signal = sigtimedwait(&signals_, nullptr, &kNoWait); signal > 0) {
      StopNow(server_, signal);
      std::_Exit(EXIT_SUCCESS);  // threads still read files
    }
  }

  const sigset_t& signals_;
  quire::WorkerProgress& progress_;
  quire::WorkerServer& server_;
};

}  // namespace

// The JSON of model files throws only where a type was not looked at first, which clang-tidy cannot
// see. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  const sigset_t signals = quire::PrepareSignals();
  quire::RaiseFileLimit();
  quire::SendGrpcLogToOurs();
  auto positional = quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "quire_worker",
       .usage = "--model DIR [flags]",
       .summary = "Computes the steps that a scheduler orders, for one rank of a model."});
  const quire::WorkerConfig config =
      quire::ValueOrExit(quire::WorkerConfigFromFlags(positional), kName, quire::kExitUsage);
  auto backend = quire::ValueOrExit(quire::CreateBackend(config), kName, quire::kExitUsage);
  if (absl::Status status = quire::CheckMemory(config, backend->space(), quire::TotalMemoryBytes());
      !status.ok()) {
    quire::ExitWith(status, kName, quire::kExitMemory);
  }
  if (config.fail_points != quire::FailPointList()) {
    quire::LogWarning("fail-points are on: this worker fails on purpose");
  }

  const auto peers = quire::ValueOrExit(ListenForRanks(config), kName, EXIT_FAILURE);
  quire::WorkerProgress progress(*backend, peers.get());
  quire::FailPoints fail_points(config.fail_points, [&progress] { progress.Tick(); });
  quire::WorkerService service(progress);
  auto server =
      quire::ValueOrExit(quire::WorkerServer::Start(config.listen, service), kName, EXIT_FAILURE);
  const LoadedModel loaded = Loader(signals, progress, *server).Load(config, fail_points, *backend);
  const quire::KvCacheBudget budget =
      ValueOrStop(quire::SizeKvCache(config, loaded.pools, *backend, *loaded.model),
                  *server,
                  kName,
                  EXIT_FAILURE);
  quire::StepExecutor executor(*loaded.model, *backend, budget, &fail_points, peers.get());
  const quire::WeightScrubber scrubber(loaded.model->weights_memory(), EndWithChangedWeights);
  service.Serve({.version = std::string(quire::Version()),
                 .model_hash = loaded.hash,
                 .determinism_fingerprint = backend->name()},
                executor);
  server->SetReady();
  quire::LogInfo("worker ready",
                 {{"backend", backend->name()},
                  {"weight_bytes", absl::StrCat(loaded.model->weight_bytes())},
                  {"kv_cache_bytes", absl::StrCat(budget.bytes)}});
  // The flags with which another one would have the same pools.
  std::printf("quire_worker: ready listen=%s --kv-cache-memory-bytes=%s --swap-space=%s\n",
              server->address().ToString().c_str(),
              absl::StrCat(budget.bytes).c_str(),
              absl::StrCat(budget.swap_space_bytes).c_str());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  StopNow(*server, signal);
  return EXIT_SUCCESS;
}
