// quire_worker serves one rank over proto/v1/worker.proto: its weights, KV pool and kernels.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/file_limit.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/flags/log_flags.h"
#include "common/flags/process.h"
#include "common/http/http_server.h"
#include "common/metrics/registry.h"
#include "common/model/digest.h"
#include "common/wire/grpc_log.h"
#include "kernels/collective/peer_listener.h"
#include "worker/kv_cache/available_memory.h"
#include "worker/memory_plan.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/model/load_progress.h"
#include "worker/model/model.h"
#include "worker/rpc/worker_progress.h"
#include "worker/rpc/worker_server.h"
#include "worker/rpc/worker_service.h"
#include "worker/runtime/fail_points.h"
#include "worker/runtime/weight_scrubber.h"
#include "worker/worker_backend.h"
#include "worker/worker_config.h"
#include "worker/worker_http.h"

namespace {

constexpr char kName[] = "quire_worker: ";

using Seconds = double;

Seconds Since(quire::Instant start) {
  return static_cast<Seconds>(quire::SteadyNow() - start) /
         static_cast<Seconds>(quire::kNanosPerSecond);
}

struct LoadedModel {
  std::unique_ptr<quire::Model> model;
  uint64_t hash = 0;
  Seconds weights_s = 0.0;  // time to read and pack the weights
  Seconds hash_s = 0.0;
  quire::KvCacheBudget pools = {};  // sizes that PlanMemory planned before loading
};

// Returns the type to which --quantization rounds weights, or "" if it rounds none.
std::string_view RoundingOf(const quire::WorkerConfig& config) {
  if (config.gpu.quantization == quire::GpuQuantization::kFp8) {
    return "fp8";
  }
  switch (config.cpu_quantization) {
    case quire::CpuQuantization::kInt8:
      return "int8";
    case quire::CpuQuantization::kInt4:
      return "int4";
    case quire::CpuQuantization::kNone:
      break;
  }
  return "";
}

absl::StatusOr<LoadedModel> LoadWeights(const quire::WorkerConfig& config,
                                        const quire::LoadProgressFn& progress,
                                        const quire::AdmitWeightsFn& admit,
                                        quire::KernelBackend& backend) {
  const std::string& dir = config.model_dir;
  const quire::Instant start = quire::SteadyNow();
  if (config.has_dummy_weights) {
    QUIRE_ASSIGN_OR_RETURN(auto model,
                           quire::MakeDummyModel(dir, /*seed=*/0, backend, config.place, admit));
    return LoadedModel{.model = std::move(model), .weights_s = Since(start)};
  }
  QUIRE_ASSIGN_OR_RETURN(auto model, quire::LoadModel(dir, backend, progress, config.place, admit));
  const Seconds weights_s = Since(start);
  QUIRE_ASSIGN_OR_RETURN(uint64_t hash, quire::HashModelFiles(dir));
  if (const std::string_view rounding = RoundingOf(config); !rounding.empty()) {
    // Rounding changes the hash. Else a worker with unrounded weights could continue requests that
    // this worker began, and give other tokens.
    quire::Digest digest;
    digest.AddInt(hash);
    digest.AddBytes(rounding);
    hash = digest.value();
  }
  return LoadedModel{.model = std::move(model),
                     .hash = hash,
                     .weights_s = weights_s,
                     .hash_s = Since(start) - weights_s};
}

// Listens for other ranks. If schedulers use a Unix socket, ranks use another Unix socket, with
// ".ranks" appended to the name; else ranks use another port of the same host. Returns null if
// there are no other ranks.
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
  // Skips destructors: they would finish the current step and send its tokens, which may be wrong.
  quire::ExitNow(quire::kExitDevice);
}

// The worker's ports. Call CloseAll before ExitNow, which runs no destructors: a Unix socket that
// is not closed leaves its file behind.
struct Ports {
  std::unique_ptr<quire::PeerListener> peers;  // null: no other ranks
  std::unique_ptr<quire::WorkerServer> server;
  std::unique_ptr<quire::HttpServer> http;  // null: no HTTP port

  // Does not close `peers`, which the service and the executor may still use.
  void Shutdown() {
    http.reset();
    if (server != nullptr) {
      server->Shutdown();
    }
  }
  // REQUIRES: ExitNow follows.
  void CloseAll() {
    Shutdown();
    peers.reset();
  }
};

// Logs the planned memory, before the weights are read. The bytes of the KV cache are not known yet
// if --num-gpu-blocks-override gives a number of blocks, whose size the scheduler will choose. They
// are not known on a GPU without --kv-cache-memory-bytes either: the KV cache gets the memory that
// the weights leave.
void LogMemory(const quire::WorkerConfig& config,
               const quire::KernelBackend& backend,
               const quire::HostMemory& host,
               int64_t weight_bytes,
               const quire::KvCacheBudget& pools) {
  const bool is_known = config.kv_cache.num_blocks_override == 0 &&
                        (config.kv_cache_bytes_given || !backend.space().has_value());
  quire::LogInfo("memory planned",
                 {{"weight_bytes", absl::StrCat(weight_bytes)},
                  {"kv_cache_bytes", is_known ? absl::StrCat(pools.bytes) : "decided later"},
                  {"swap_space_bytes", absl::StrCat(pools.swap_space_bytes)},
                  {"available_bytes",
                   host.available_bytes ? absl::StrCat(*host.available_bytes) : "unknown"}});
}

// Logs each setting in use, and the flag or rule that decided it.
void LogReady(const quire::WorkerConfig& config,
              const quire::KernelBackend& backend,
              const LoadedModel& loaded,
              const quire::KvCacheBudget& budget) {
  const int64_t blocks = config.kv_cache.num_blocks_override;
  const bool is_on_gpu = backend.space().has_value();
  const char* const of_free =
      is_on_gpu ? "memory left by --gpu-memory-utilization" : "30 % of free memory, at most 4 GiB";
  quire::LogInfo(
      "worker ready",
      {{"backend", backend.name()},
       {"backend_by",
        is_on_gpu                ? "--device"
        : config.cpu_isa.empty() ? "the best instruction set of this machine"
                                 : "--cpu-isa"},
       {"threads", is_on_gpu ? "none" : absl::StrCat(quire::NumThreads(quire::CpuOptions(config)))},
       {"threads_by",
        is_on_gpu                ? "--device"
        : config.num_threads > 0 ? "--threads"
                                 : "usable CPUs, divided by --ranks-on-host"},
       {"weight_bytes", absl::StrCat(loaded.model->weight_bytes())},
       {"weights_s", absl::StrFormat("%.2f", loaded.weights_s)},
       {"hash_s", absl::StrFormat("%.2f", loaded.hash_s)},
       {"kv_cache_bytes", blocks > 0 ? "" : absl::StrCat(budget.bytes)},
       {"kv_cache_by",
        blocks > 0                    ? absl::StrCat("--num-gpu-blocks-override=", blocks)
        : config.kv_cache_bytes_given ? "--kv-cache-memory-bytes"
                                      : of_free},
       {"swap_space_bytes", absl::StrCat(budget.swap_space_bytes)},
       {"swap_space_by",
        config.swap_space_given ? "--swap-space" : "4 GiB, at most a quarter of the memory"}});
}

void LogStop(int signal) { quire::LogInfo("worker stops", {{"signal", absl::StrCat(signal)}}); }

// Returns the value, or closes the ports and exits.
template <typename T>
T ValueOrStop(absl::StatusOr<T> value, Ports& ports, const char* prefix, int exit_code) {
  if (!value.ok()) {
    ports.CloseAll();
  }
  return quire::ValueOrExit(std::move(value), prefix, exit_code);
}

// Writes the worker's addresses to standard output, for the supervisor. http_port: the bound port,
// since the configured port may be 0.
void SayWhere(const quire::Address& listen, quire::Address http, int http_port) {
  http.port = http_port;
  quire::StandardOutput().Write(absl::StrCat(
      "quire_worker: listens listen=", listen.ToString(), " http=", http.ToString(), "\n"));
}

// Loads the model. A large model takes minutes, so the loader reports its progress to Watch calls
// and polls for stop signals.
class Loader {
 public:
  Loader(const sigset_t& signals, quire::WorkerProgress& progress, Ports& ports)
      : signals_(signals), progress_(progress), ports_(ports) {}

  LoadedModel Load(const quire::WorkerConfig& config,
                   const quire::FailPoints& fail_points,
                   quire::KernelBackend& backend) {
    fail_points.InLoad([this] {
      progress_.Tick();
      StopIfAsked();
    });
    quire::LoadProgressBar bar;
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
      QUIRE_RETURN_IF_ERROR(quire::CheckQuantization(config, model, share));
      QUIRE_ASSIGN_OR_RETURN(pools,
                             quire::PlanMemory(config, host, backend, model, share, weight_bytes));
      LogMemory(config, backend, host, weight_bytes, pools);
      return absl::OkStatus();
    };
    absl::StatusOr<LoadedModel> loaded = LoadWeights(config, tell, admit, backend);
    const std::string reason = quire::ReasonOf(loaded.status());
    LoadedModel model =
        ValueOrStop(std::move(loaded),
                    ports_,
                    reason == "MEMORY" ? kName : "load: ",
                    reason == "TENSOR_PARALLEL_SIZE" ? quire::kExitUsage : quire::kExitModel);
    model.pools = pools;
    return model;
  }

 private:
  void StopIfAsked() {
    constexpr timespec kNoWait = {};
    if (const int signal = sigtimedwait(&signals_, nullptr, &kNoWait); signal > 0) {
      LogStop(signal);
      ports_.CloseAll();
      // Skips destructors, since other threads still read the model's files.
      quire::ExitNow(EXIT_SUCCESS);
    }
  }

  const sigset_t& signals_;
  quire::WorkerProgress& progress_;
  Ports& ports_;
};

}  // namespace

// Reading a JSON value throws only if the value has the wrong type. All types are checked first,
// but clang-tidy cannot see that.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  quire::OpenStandardStreams();
  const sigset_t signals = quire::PrepareSignals();
  quire::RaiseFileLimit();
  quire::SendGrpcLogToOurs();
  auto positional = quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "quire_worker",
       .usage = "--model DIR [flags]",
       .summary = "Runs the steps that a scheduler sends, for one rank of a model."});
  quire::ApplyLogFlagsOrExit(kName);
  const quire::WorkerConfig config =
      quire::ValueOrExit(quire::WorkerConfigFromFlags(positional), kName, quire::kExitUsage);
  auto backend = quire::ValueOrExit(quire::CreateBackend(config), kName, quire::kExitUsage);
  if (absl::Status status = quire::CheckKvBackend(config, *backend); !status.ok()) {
    quire::ExitWith(status, kName, quire::kExitUsage);
  }
  if (absl::Status status = quire::CheckRankLinks(config, *backend); !status.ok()) {
    quire::ExitWith(status, kName, quire::kExitUsage);
  }
  if (absl::Status status = quire::CheckMemory(config, backend->space(), quire::TotalMemoryBytes());
      !status.ok()) {
    quire::ExitWith(status, kName, quire::kExitMemory);
  }
  if (config.fail_points != quire::FailPointList()) {
    quire::LogWarning("fail-points are on: this worker fails on purpose");
  }

  Ports ports = {.peers = quire::ValueOrExit(ListenForRanks(config), kName, EXIT_FAILURE)};
  quire::WorkerProgress progress(*backend, ports.peers.get());
  quire::FailPoints fail_points(config.fail_points, [&progress] { progress.Tick(); });
  quire::MetricsRegistry registry;
  const auto metrics = std::make_shared<quire::WorkerMetrics>();
  registry.Add(metrics);
  quire::WorkerService service(progress);
  auto server = quire::WorkerServer::Start(
      config.listen, service, config.tls, config.http.has_value() ? &registry : nullptr);
  if (!server.ok()) {
    // Stops the service first: its threads use the peer listener, which ValueOrStop closes.
    service.Stop();
  }
  ports.server = ValueOrStop(std::move(server), ports, kName, EXIT_FAILURE);
  if (config.http.has_value()) {
    ports.http =
        ValueOrStop(quire::ServeWorkerHttp(config, backend->name(), service, progress, registry),
                    ports,
                    kName,
                    EXIT_FAILURE);
    SayWhere(ports.server->address(), *config.http, ports.http->port());
  }
  const LoadedModel loaded = Loader(signals, progress, ports).Load(config, fail_points, *backend);
  const quire::KvCacheBudget budget =
      ValueOrStop(quire::SizeKvCache(config, loaded.pools, *backend, *loaded.model),
                  ports,
                  kName,
                  EXIT_FAILURE);
  quire::StepExecutor executor(*loaded.model,
                               *backend,
                               budget,
                               &fail_points,
                               ports.peers.get(),
                               config.http.has_value() ? metrics.get() : nullptr);
  const quire::WeightScrubber scrubber(loaded.model->weights_memory(), EndWithChangedWeights);
  metrics->SetWeights(loaded.model->weight_bytes(), scrubber);
  service.Serve({.version = std::string(quire::Version()),
                 .model_hash = loaded.hash,
                 .determinism_fingerprint = backend->name()},
                executor);
  ports.server->SetReady();
  LogReady(config, *backend, loaded, budget);
  // The line contains flags with which a restarted worker gets pools of the same size.
  quire::StandardOutput().Write(absl::StrCat("quire_worker: ready listen=",
                                             ports.server->address().ToString(),
                                             " --kv-cache-memory-bytes=",
                                             budget.bytes,
                                             " --swap-space=",
                                             budget.swap_space_bytes,
                                             "\n"));

  int signal = 0;
  sigwait(&signals, &signal);
  LogStop(signal);
  ports.Shutdown();
  return EXIT_SUCCESS;
}
