// quire_worker: weights, the KV pool and the kernels of one rank, behind proto/v1/worker.proto.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/log.h"
#include "common/flags/command_line.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/model/load_progress.h"
#include "worker/model/model.h"
#include "worker/rpc/worker_server.h"
#include "worker/worker_config.h"

namespace {

// Before any thread starts, so that all inherit the mask and only WaitForSignal gets them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int WaitForSignal(const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
  return signal;
}

// The value, or the end of the process with the message of the failure.
template <typename T>
T ValueOrExit(absl::StatusOr<T> value, const char* prefix, int exit_code) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s%s\n", prefix, std::string(value.status().message()).c_str());
    std::exit(exit_code);
  }
  return *std::move(value);
}

std::unique_ptr<quire::Model> LoadOrExit(const std::string& dir, quire::KernelBackend& backend) {
  quire::LoadProgressBar bar(STDERR_FILENO);
  auto model = quire::LoadModel(dir, backend, [&bar](const auto& done) { bar.Update(done); });
  return ValueOrExit(std::move(model), "", quire::kExitModel);
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
      ValueOrExit(quire::WorkerConfigFromFlags(positional), "quire_worker: ", quire::kExitUsage);
  auto backend = ValueOrExit(
      quire::CreateCpuBackend({.num_threads = config.num_threads, .isa = config.cpu_isa}),
      "quire_worker: --cpu-isa: ",
      quire::kExitUsage);
  uint64_t model_hash = ValueOrExit(quire::HashModelFiles(config.model_dir), "", quire::kExitModel);
  std::unique_ptr<quire::Model> model = LoadOrExit(config.model_dir, *backend);

  quire::StepExecutor executor(*model, *backend, config.kv_cache);
  quire::WorkerService service({.uuid = quire::MakeWorkerUuid(),
                                .version = std::string(quire::Version()),
                                .model_hash = model_hash,
                                .determinism_fingerprint = backend->name()},
                               executor);
  auto server = ValueOrExit(
      quire::WorkerServer::Start(
          {.address = config.listen, .allow_insecure_bind = config.allow_insecure_bind}, service),
      "quire_worker: ",
      EXIT_FAILURE);
  quire::LogInfo("worker ready",
                 {{"backend", backend->name()},
                  {"weight_bytes", absl::StrCat(model->weight_bytes())},
                  {"kv_cache_bytes", absl::StrCat(config.kv_cache.bytes)}});
  std::printf("quire_worker: ready listen=%s\n", server->address().ToString().c_str());
  std::fflush(stdout);

  int signal = WaitForSignal(signals);
  quire::LogInfo("worker stops", {{"signal", absl::StrCat(signal)}});
  server->Shutdown();
  return EXIT_SUCCESS;
}
