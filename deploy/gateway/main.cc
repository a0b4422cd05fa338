// The program quire_gateway: OpenAI's HTTP API in front of the schedulers.
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/file_limit.h"
#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"
#include "common/flags/command_line.h"
#include "common/flags/log_flags.h"
#include "common/flags/process.h"
#include "common/wire/grpc_log.h"
#include "deploy/gateway/chat_model.h"
#include "deploy/gateway/gateway_config.h"
#include "deploy/gateway/gateway_server.h"

namespace {

constexpr char kName[] = "quire_gateway: ";
constexpr timespec kPollInterval = {.tv_sec = 0, .tv_nsec = 20'000'000};
// Drain ignores a repeat of the first signal within this time. timeout(1) and similar programs
// signal a program and then its process group, so the program gets the signal twice.
constexpr quire::Instant kSameSignalNs = quire::kNanosPerSecond;
// Time to send the last bytes of requests that Drain has ended.
constexpr quire::Instant kFlushNs = quire::kNanosPerSecond;

// Prints the addresses of this process. The process that started it reads this line.
void SayWhere(const char* what, const quire::GatewayServer& server) {
  const std::string pages = server.pages_address();
  quire::StandardOutput().Write(absl::StrCat(
      kName, what, " api=", server.address(), pages.empty() ? "" : " http=", pages, "\n"));
}

// Waits for a stop signal, and returns it. Prints the ready line as soon as clients can be served.
int RunUntilSignal(const quire::GatewayServer& server, const sigset_t& signals) {
  bool said_ready = false;
  for (;;) {
    const int signal = sigtimedwait(&signals, nullptr, said_ready ? nullptr : &kPollInterval);
    if (signal > 0) {
      quire::LogInfo("gateway is draining; another signal ends the remaining requests at once",
                     {{"signal", absl::StrCat(signal)}});
      return signal;
    }
    if (server.is_ready() && !std::exchange(said_ready, true)) {
      quire::LogInfo("requests can be sent", {{"api", server.address()}});
      SayWhere("ready", server);
    }
  }
}

// Lets running requests finish until `timeout` has passed or another signal arrives, then ends
// them. Ignores a repeat of the signal `first` within kSameSignalNs.
void Drain(quire::GatewayServer& server,
           const sigset_t& signals,
           int first,
           absl::Duration timeout) {
  server.BeginDrain();
  const quire::Instant begin = quire::SteadyNow();
  const quire::Instant deadline = begin + absl::ToInt64Nanoseconds(timeout);
  while (!server.is_drained() && quire::SteadyNow() < deadline) {
    const int signal = sigtimedwait(&signals, nullptr, &kPollInterval);
    if (signal > 0 && (signal != first || quire::SteadyNow() - begin >= kSameSignalNs)) {
      break;
    }
  }
  if (server.is_drained()) {
    return;
  }
  quire::LogWarning("the drain ended before all requests had finished");
  server.EndRequests();
  const quire::Instant end = quire::SteadyNow() + kFlushNs;
  while (!server.is_drained() && quire::SteadyNow() < end) {
    sigtimedwait(&signals, nullptr, &kPollInterval);
  }
}

}  // namespace

int main(int argc, char** argv) {
  quire::OpenStandardStreams();
  const sigset_t signals = quire::PrepareSignals();
  quire::RaiseFileLimit();
  quire::ConfigureMalloc();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // see scheduler/main.cc
  quire::SendGrpcLogToOurs();
  const auto positional = quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "quire_gateway",
       .usage = "--model MODEL --scheduler HOST:PORT [flags]",
       .summary = "Serves OpenAI's HTTP API in front of quire_scheduler."});
  quire::ApplyLogFlagsOrExit(kName);
  const quire::GatewayConfig config =
      quire::ValueOrExit(quire::GatewayConfigFromFlags(positional), kName, quire::kExitUsage);
  const auto server = quire::ValueOrExit(quire::GatewayServer::Start(config), kName, EXIT_FAILURE);
  quire::LogInfo("gateway listens",
                 {{"api", server->address()},
                  {"http", server->pages_address()},
                  {"tls", config.tls != nullptr ? "on" : "off"},
                  {"api_keys", config.api_keys != nullptr ? "on" : "off"}});
  SayWhere("listens", *server);
  server->Open(quire::ValueOrExit(
      quire::ChatModel::Load({.model_path = config.model_path,
                              .template_file = config.chat_template_file,
                              .allows_special_tokens = config.allows_special_tokens}),
      kName,
      quire::kExitModel));
  const int signal = RunUntilSignal(*server, signals);
  Drain(*server, signals, signal, config.shutdown_timeout);
  return EXIT_SUCCESS;
}
