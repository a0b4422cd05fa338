#include "deploy/cli/supervise_command.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"
#include "common/base/printable.h"
#include "common/base/string_view.h"
#include "common/flags/process.h"
#include "common/wire/address.h"
#include "deploy/cli/liveness_probe.h"
#include "deploy/cli/serve_arguments.h"
#include "deploy/cli/supervised_child.h"

#include <sys/signalfd.h>
#include <sys/wait.h>

namespace quire {
namespace {

constexpr char kSuperviseUsage[] =
    R"(usage: quire supervise quire_scheduler|quire_worker|quire_gateway [flags]

Runs the program with these flags, for a container that holds this program alone. Starts it again
on the same ports when it dies, or when its /livez (--http-port) fails or is silent for 10 s. A
container runtime waits longer before each restart; this command waits for 100 ms, and up to 10 s
only if the program is never ready. Passes SIGTERM, SIGINT and SIGHUP on, and ends when the program
then ends.

Ends with the program's exit code if the program was never ready and a restart would not help: 1
unusable address or file, 2 bad flags, 3 bad model, 4 too little memory, 5 device failure.
)";

constexpr int64_t kMaxSilenceNs = 10 * kNanosPerSecond;
constexpr int kPollMillis = 50;

// A program's HTTP port, and the flags that give the program's next start the same ports.
struct Listens {
  Address http;
  std::vector<std::string> flags;
};

// Reads the line that a program prints when it listens. Returns nullopt for other lines, and for a
// worker without HTTP port.
std::optional<Listens> ParseListens(std::string_view line) {
  if (const auto worker = ParseWorkerHttp(line); worker.has_value()) {
    const absl::StatusOr<Address> http = ParseAddress(worker->address);
    return http.ok() ? std::optional<Listens>({*http, {worker->flag}}) : std::nullopt;
  }
  if (const auto gateway = ParseGatewayAddresses(line); gateway.has_value()) {
    return gateway->http.has_value() && !gateway->is_ready
               ? std::optional<Listens>({*gateway->http, gateway->flags})
               : std::nullopt;
  }
  absl::string_view rest = ToAbsl(line);
  if (!absl::ConsumePrefix(&rest, "quire_scheduler: listens ")) {
    return std::nullopt;
  }
  const auto scheduler = ParseSchedulerAddresses(ToStd(rest));
  return scheduler.ok() ? std::optional<Listens>({scheduler->http, scheduler->flags})
                        : std::nullopt;
}

// Returns true if the program's flags ask for a log in JSON. The supervisor's log is then JSON too.
bool WantsJsonLog(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const bool is_flag = args[i] == "--log-format" || args[i] == "--log_format";
    if (args[i] == "--log-format=json" || args[i] == "--log_format=json" ||
        (is_flag && i + 1 < args.size() && args[i + 1] == "json")) {
      return true;
    }
  }
  return false;
}

class ProgramSupervisor {
 public:
  ProgramSupervisor(std::string name, std::vector<std::string> argv, int signal_fd)
      : signal_fd_(signal_fd), child_(std::move(name), std::move(argv), kMaxSilenceNs) {}

  int Run() {
    while (!exit_code_.has_value()) {
      Tend(SteadyNow());
      if (!exit_code_.has_value()) {
        Wait();
        ReadSignals();
      }
    }
    return *exit_code_;
  }

 private:
  void Tend(Instant now) {
    if (const absl::Status status = child_.MaybeStart(now).status(); !status.ok()) {
      std::fprintf(stderr, "quire: supervise: %s\n", std::string(status.message()).c_str());
      exit_code_ = EXIT_FAILURE;
      return;
    }
    ChildProcess* process = child_.process();
    if (process == nullptr) {
      return;
    }
    while (const std::optional<std::string> line = process->TakeLine()) {
      OnLine(*line);
    }
    // Without an HTTP port to probe, the program counts as live until it dies.
    if (!probe_.has_value() || probe_->Poll(now)) {
      child_.OnSign();
    }
    if (const std::optional<int> wait_status = child_.TakeEnd(now)) {
      OnEnd(*wait_status);
    }
  }

  void OnLine(std::string_view line) {
    StandardOutput().Write(absl::StrCat(ToAbsl(line), "\n"));
    if (const auto listens = ParseListens(line); listens.has_value()) {
      probe_.emplace(listens->http);
      if (!std::exchange(has_ports_, true)) {
        child_.AddArguments(listens->flags);
      }
    }
    const std::string prefix = child_.name() + ": ";
    if (line.starts_with(prefix + "ready ") || line.starts_with(prefix + "stands by ")) {
      child_.OnUseful();
      was_useful_ = true;
    }
  }

  void OnEnd(int wait_status) {
    probe_.reset();
    const int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : EXIT_FAILURE;
    if (is_stopping_) {
      // A SIGTERM that comes before the program has installed its handler kills the program. This
      // counts as success.
      const bool is_early = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGTERM;
      exit_code_ = is_early ? EXIT_SUCCESS : code;
    } else if (!was_useful_ && (IsHopeless(wait_status) || code == EXIT_SUCCESS)) {
      exit_code_ = code;  // EXIT_SUCCESS: --help or --version
    } else {
      child_.LogEnd(wait_status);
    }
  }

  // Sleeps until a signal or a line of the program's output arrives, but at most kPollMillis,
  // because poll(2) here does not watch the answers to the probe.
  void Wait() {
    ChildProcess* process = child_.process();
    pollfd fds[2] = {
        {.fd = signal_fd_, .events = POLLIN, .revents = 0},
        {.fd = process == nullptr ? -1 : process->output_fd(), .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, kPollMillis);
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (::read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGCHLD) {
        continue;
      }
      is_stopping_ = true;
      if (ChildProcess* process = child_.process(); process != nullptr) {
        process->Signal(SIGTERM);
        process->Signal(SIGCONT);  // a stopped program would not see SIGTERM
      } else {
        exit_code_ = EXIT_SUCCESS;
      }
    }
  }

  const int signal_fd_;
  SupervisedChild child_;
  std::optional<LivenessProbe> probe_;  // of the running program; nullopt until it listens
  bool has_ports_ = false;              // true if the arguments have the ports of the first start
  bool was_useful_ = false;             // true if a start was useful (RestartPolicy)
  bool is_stopping_ = false;
  std::optional<int> exit_code_;
};

}  // namespace

int SuperviseProgram(std::vector<std::string> argv, int signal_fd) {
  std::string name = std::filesystem::path(argv.front()).filename().string();
  return ProgramSupervisor(std::move(name), std::move(argv), signal_fd).Run();
}

int RunSupervise(const std::vector<std::string>& args) {
  OpenStandardStreams();
  const std::string program = args.empty() ? "" : args.front();
  if (program == "--help") {
    std::fputs(kSuperviseUsage, stdout);
    return EXIT_SUCCESS;
  }
  if (program != "quire_scheduler" && program != "quire_worker" && program != "quire_gateway") {
    std::fprintf(stderr,
                 "quire: supervise: the first word must be quire_scheduler, quire_worker or "
                 "quire_gateway (got "
                 "\"%s\")\n",
                 OneLine(program).c_str());
    return kExitUsage;
  }
  std::vector<std::string> argv = args;
  argv.front() = absl::StrCat(ProgramFolder(), "/", program);
  if (WantsJsonLog(args)) {
    SetLogFormat(LogFormat::kJson);
  }
  const int signal_fd = OpenSignalFd();
  const int code = SuperviseProgram(std::move(argv), signal_fd);
  ::close(signal_fd);
  return code;
}

}  // namespace quire
