// The program quire_scheduler: serves the public gRPC API, schedules all requests, and manages the
// blocks of the KV cache.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/file_limit.h"
#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"
#include "common/base/printable.h"
#include "common/flags/command_line.h"
#include "common/flags/log_flags.h"
#include "common/flags/process.h"
#include "common/wire/grpc_log.h"
#include "scheduler/rpc/served_model.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/scheduler_server.h"

namespace {

constexpr timespec kPollInterval = {.tv_sec = 0, .tv_nsec = 100'000'000};
// Poll interval until the ready line is printed. It is short, because the parent process waits for
// that line.
constexpr timespec kPollUntilReady = {.tv_sec = 0, .tv_nsec = 10'000'000};

constexpr timespec kDrainPollInterval = {.tv_sec = 0, .tv_nsec = 20'000'000};
// Drain ignores a signal within this time of the first one. timeout(1) and similar programs signal
// a program and then its process group, so the program gets the signal twice.
constexpr quire::Instant kSameSignalNs = quire::kNanosPerSecond;

constexpr size_t kMaxRefusalBytes = 1024;

// Upper bound on the shutdown after the drain. Closing streams and writing files takes far less.
constexpr unsigned kMaxEndSeconds = 30;

// Prints why a worker was refused. `quire serve` reads this line, and exits if the server was never
// ready, because a restart of the worker would not help. Printable replaces line breaks: the text
// may come from the worker, and could otherwise forge a line of this output.
void PrintRefusal(const absl::Status& status) {
  const std::string refusal =
      absl::StrCat(quire::ReasonOf(status), " ", absl::string_view(status.message()));
  quire::StandardOutput().Write(
      absl::StrCat("quire_scheduler: refuses ", quire::Printable(refusal, kMaxRefusalBytes), "\n"));
}

// Prints the addresses of this process. The process that started it reads this line.
void SayWhere(const char* what, const quire::SchedulerServer& server) {
  const std::string admin = server.admin_address();
  quire::StandardOutput().Write(absl::StrCat("quire_scheduler: ",
                                             what,
                                             " grpc=",
                                             server.grpc_address(),
                                             " http=",
                                             server.http_address(),
                                             admin.empty() ? "" : " admin=",
                                             admin,
                                             "\n"));
}

void SayReady(const quire::SchedulerServer& server, quire::Instant started_at) {
  quire::LogInfo("requests can be sent",
                 {{"grpc", server.grpc_address()},
                  {"http", server.http_address()},
                  {"after_s",
                   absl::StrFormat("%.2f",
                                   static_cast<double>(quire::SteadyNow() - started_at) /
                                       static_cast<double>(quire::kNanosPerSecond))}});
  SayWhere("ready", server);
}

// Polls the server until a signal arrives. Prints a line "ready" when requests can be sent, and a
// line "stands by" when another scheduler has the workers.
void RunUntilSignal(quire::SchedulerServer& server,
                    const sigset_t& signals,
                    quire::Instant started_at) {
  bool said_ready = false;
  bool said_standby = false;
  for (;;) {
    const int signal =
        sigtimedwait(&signals, nullptr, said_ready ? &kPollInterval : &kPollUntilReady);
    if (signal > 0) {
      quire::LogInfo("scheduler is draining; another signal ends the remaining requests at once",
                     {{"signal", absl::StrCat(signal)}});
      return;
    }
    server.Poll();
    if (server.is_ready() && !std::exchange(said_ready, true)) {
      said_standby = false;
      SayReady(server, started_at);
    }
    if (server.is_standby() && !std::exchange(said_standby, true)) {
      said_ready = false;
      SayWhere("stands by", server);
    }
  }
}

// Lets accepted requests finish. Ends after `timeout`, or when a signal arrives at least
// kSameSignalNs after the drain began.
void Drain(quire::SchedulerServer& server, const sigset_t& signals, absl::Duration timeout) {
  server.BeginDrain();
  const quire::Instant begin = quire::SteadyNow();
  const quire::Instant deadline = begin + absl::ToInt64Nanoseconds(timeout);
  const char* why = "--shutdown-timeout has passed";
  do {
    server.Poll();
    if (server.is_drained()) {
      return;
    }
    if (sigtimedwait(&signals, nullptr, &kDrainPollInterval) > 0 &&
        quire::SteadyNow() - begin >= kSameSignalNs) {
      why = "another signal arrived";
      break;
    }
  } while (quire::SteadyNow() < deadline);
  quire::LogWarning("the drain ended before all requests had finished",
                    {{"why", why}, {"requests_left", absl::StrCat(server.num_live_requests())}});
}

}  // namespace

int main(int argc, char** argv) {
  const quire::Instant started_at = quire::SteadyNow();
  quire::OpenStandardStreams();
  const sigset_t signals = quire::PrepareSignals();
  quire::RaiseFileLimit();
  quire::ConfigureMalloc();
  // Turns off abseil's deadlock detection, which is on in Debian's build. Whenever this process
  // locks an absl::Mutex, even in gRPC, the detection takes a global lock. It also allocates half a
  // KiB for each mutex, which is reused but never returned to the system.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  quire::SendGrpcLogToOurs();
  const auto positional = quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "quire_scheduler",
       .usage = "--model MODEL --workers HOST:PORT [flags]",
       .summary = "Accepts requests, plans every step and manages the KV cache."});
  quire::ApplyLogFlagsOrExit("quire_scheduler: ");
  const quire::SchedulerConfig config = quire::ValueOrExit(
      quire::SchedulerConfigFromFlags(positional), "quire_scheduler: ", quire::kExitUsage);
  const quire::ServedModel model =
      quire::ValueOrExit(quire::LoadServedModel(config.model), "load: ", quire::kExitModel);
  if (const absl::Status status = quire::CheckFlagsOfModel(config, model.config); !status.ok()) {
    quire::ExitWith(status, "quire_scheduler: ", quire::kExitUsage);
  }
  const auto server =
      quire::ValueOrExit(quire::SchedulerServer::Start(config, &model, PrintRefusal),
                         "quire_scheduler: ",
                         EXIT_FAILURE);
  quire::LogSettings(config);
  quire::LogInfo("scheduler listens",
                 {{"grpc", server->grpc_address()},
                  {"http", server->http_address()},
                  {"admin", server->admin_address()}});
  SayWhere("listens", *server);
  RunUntilSignal(*server, signals, started_at);
  Drain(*server, signals, config.shutdown_timeout);
  // Ends this process even if Shutdown hangs in a write to the step log or to the pinned prefixes.
  ::alarm(kMaxEndSeconds);
  server->Shutdown();
  return EXIT_SUCCESS;
}
