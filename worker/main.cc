// quire_worker: weights, the KV pool and the kernels of one rank, behind proto/v1/worker.proto.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/flags/command_line.h"
#include "common/model/digest.h"
#include "worker/model/load_progress.h"
#include "worker/model/model.h"
#include "worker/rpc/worker_server.h"
#include "worker/worker_backend.h"
#include "worker/worker_config.h"

namespace {

constexpr char kName[] = "quire_worker: ";

// Before any thread starts, so that all inherit the mask and only sigwait gets them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// The value, or the end of the process with one line that begins with the prefix.
template <typename T>
T ValueOrExit(absl::StatusOr<T> value, const std::string& prefix, int exit_code) {
  if (!value.ok()) {
    std::string line(value.status().message());
    std::fprintf(stderr, "%s%s\n", line.starts_with(prefix) ? "" : prefix.c_str(), line.c_str());
    std::exit(exit_code);  // NOLINT(concurrency-mt-unsafe): no other thread yet
  }
  return *std::move(value);
}

struct LoadedModel {
  std::unique_ptr<quire::Model> model;
  uint64_t hash = 0;
};

absl::StatusOr<LoadedModel> Load(const quire::WorkerConfig& config, quire::KernelBackend& backend) {
  const std::string& dir = config.model_dir;
  if (config.has_dummy_weights) {
    QUIRE_ASSIGN_OR_RETURN(auto model, quire::MakeDummyModel(dir, /*seed=*/0, backend));
    return LoadedModel{.model = std::move(model)};
  }
  quire::LoadProgressBar bar(STDERR_FILENO);
  QUIRE_ASSIGN_OR_RETURN(
      auto model, quire::LoadModel(dir, backend, [&bar](const auto& done) { bar.Update(done); }));
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

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals = BlockStopSignals();
  auto positional = quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "quire_worker",
       .usage = "--model DIR [flags]",
       .summary = "Computes the steps that a scheduler orders, for one rank of a model."});
  quire::WorkerConfig config =
      ValueOrExit(quire::WorkerConfigFromFlags(positional), kName, quire::kExitUsage);
  auto backend = ValueOrExit(quire::CreateBackend(config), kName, quire::kExitUsage);
  LoadedModel loaded = ValueOrExit(Load(config, *backend), "load: ", quire::kExitModel);

  const quire::KvCacheBudget budget =
      ValueOrExit(quire::SizeKvCache(config, *backend, *loaded.model), kName, EXIT_FAILURE);
  quire::StepExecutor executor(*loaded.model, *backend, budget);
  quire::WorkerService service({.uuid = quire::MakeWorkerUuid(),
                                .version = std::string(quire::Version()),
                                .model_hash = loaded.hash,
                                .determinism_fingerprint = backend->name()},
                               executor);
  auto server =
      ValueOrExit(quire::WorkerServer::Start(config.listen, service), kName, EXIT_FAILURE);
  quire::LogInfo("worker ready",
                 {{"backend", backend->name()},
                  {"weight_bytes", absl::StrCat(loaded.model->weight_bytes())},
                  {"kv_cache_bytes", absl::StrCat(budget.bytes)}});
  std::printf("quire_worker: ready listen=%s\n", server->address().ToString().c_str());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  quire::LogInfo("worker stops", {{"signal", absl::StrCat(signal)}});
  server->Shutdown();
  return EXIT_SUCCESS;
}
