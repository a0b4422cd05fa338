#include "deploy/cli/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"
#include "common/base/string_view.h"
#include "deploy/cli/serve_arguments.h"

#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

namespace quire {
namespace {

constexpr int64_t kMaxWorkerSilenceNs = 4 * kNanosPerSecond;
constexpr int64_t kMaxSchedulerSilenceNs = 10 * kNanosPerSecond;
constexpr Instant kStopNs = 5 * kNanosPerSecond;
constexpr int kMaxSleepMillis = 50;
constexpr useconds_t kStopPollMicros = 5'000;

void Say(std::string_view text) {
  StandardError().Write(absl::StrCat("quire: serve: ", ToAbsl(text), "\n"));
}

}  // namespace

Supervisor::WorkerChild::WorkerChild(std::string name, Worker worker, int64_t max_loading_pause_ns)
    : child(std::move(name), std::move(worker.argv), kMaxWorkerSilenceNs),
      address(std::move(worker.address)),
      loading(max_loading_pause_ns) {}

Supervisor::Supervisor(std::vector<std::string> scheduler_argv,
                       std::vector<std::string> gateway_argv,
                       std::vector<Worker> workers,
                       int signal_fd,
                       int64_t max_loading_pause_ns)
    : signal_fd_(signal_fd),
      scheduler_("scheduler", std::move(scheduler_argv), kMaxSchedulerSilenceNs),
      gateway_(std::move(gateway_argv)) {
  for (Worker& worker : workers) {
    workers_.push_back(std::make_unique<WorkerChild>(
        absl::StrCat("worker ", workers_.size()), std::move(worker), max_loading_pause_ns));
  }
}

int Supervisor::Run() {
  while (!exit_code_.has_value()) {
    const Instant now = SteadyNow();
    TendScheduler(now);
    // Workers start after the scheduler has accepted its flags and the model, so that a fault that
    // both programs would report is reported only once.
    if (scheduler_address_.has_value()) {
      TendWorkers(now);
      TendGateway(now);
    }
    if (!exit_code_.has_value()) {
      Wait();
      ReadSignals();
    }
  }
  if (is_stopping_) {
    StopWorkers();
  }
  return *exit_code_;
}

// Makes the folder of the sockets again, in case a cleaner of /tmp has removed it. Without this
// folder neither the scheduler nor the workers can listen.
void Supervisor::MakeSocketFolder() const {
  if (!workers_.empty() && workers_.front()->address.is_unix()) {
    const auto folder = std::filesystem::path(workers_.front()->address.unix_path).parent_path();
    ::mkdir(folder.c_str(), S_IRWXU);
  }
}

void Supervisor::TendScheduler(Instant now) {
  if (!is_stopping_) {
    if (scheduler_.process() == nullptr) {
      MakeSocketFolder();
    }
    Start(scheduler_, now);
  }
  ChildProcess* process = scheduler_.process();
  if (process == nullptr) {
    return;
  }
  while (const std::optional<std::string> line = process->TakeLine()) {
    OnSchedulerLine(*line);
  }
  if (probe_.has_value() && probe_->Poll(now)) {
    scheduler_.OnSign();
  }
  if (const std::optional<int> wait_status = scheduler_.TakeEnd(now)) {
    OnSchedulerEnd(*wait_status);
  }
}

void Supervisor::OnSchedulerLine(std::string_view line) {
  absl::string_view rest = ToAbsl(line);
  if (!absl::ConsumePrefix(&rest, "quire_scheduler: ")) {
    return;
  }
  if (absl::ConsumePrefix(&rest, "listens ")) {
    OnListens(ToStd(rest));
  } else if (absl::ConsumePrefix(&rest, "refuses ")) {
    OnRefusal(ToStd(rest));
  } else if (absl::ConsumePrefix(&rest, "stands by ")) {
    SetStandby(true);
    LogError("another scheduler has the workers of this server");
  } else if (absl::ConsumePrefix(&rest, "ready ")) {
    SetStandby(false);
    scheduler_.OnUseful();
    was_ready_ = true;
    ready_line_ = std::string(rest);
  }
}

void Supervisor::MaybeSayReady() {
  if (said_ready_ || ready_line_.empty() || !gateway_.was_ready()) {
    return;
  }
  said_ready_ = true;
  for (const auto& worker : workers_) {
    // Workers print their addresses before they are ready, so ReadLines finds these lines.
    ReadLines(*worker);
    if (!worker->http_address.empty()) {
      StandardOutput().Write(
          absl::StrCat("quire: ", worker->child.name(), " http=", worker->http_address, "\n"));
    }
  }
  // Clients use the gateway's HTTP address, not the scheduler's.
  const size_t http = ready_line_.find(" http=");
  const size_t admin = ready_line_.find(" admin=");
  StandardOutput().Write(absl::StrCat("quire: ready ",
                                      ready_line_.substr(0, http),
                                      " http=",
                                      gateway_.api_address(),
                                      admin == std::string::npos ? "" : ready_line_.substr(admin),
                                      "\n"));
}

void Supervisor::OnListens(std::string_view addresses) {
  if (!scheduler_address_.has_value()) {
    absl::StatusOr<SchedulerAddresses> parsed = ParseSchedulerAddresses(addresses);
    if (!parsed.ok()) {
      LogError("cannot read the addresses of the scheduler", {{"line", std::string(addresses)}});
      return;
    }
    scheduler_address_ = parsed->http;
    gateway_.child().AddArguments(
        {absl::StrCat("--scheduler-http=", scheduler_address_->ToString())});
    scheduler_.AddArguments(parsed->flags);
  }
  scheduler_.OnSign();
  probe_.emplace(*scheduler_address_);
}

// Called when the scheduler refuses a worker. If the server was never ready, the refusal ends the
// supervisor. Otherwise it is only logged, because a restart of the scheduler or worker may help.
void Supervisor::OnRefusal(std::string_view refusal) {
  if (!was_ready_) {
    Say(refusal);
    const bool lacks_memory = refusal.starts_with("NO_MEMORY ") || refusal.starts_with("MEMORY ");
    exit_code_ = lacks_memory ? kExitMemory : kExitUsage;
  } else if (refusal != last_refusal_) {
    LogError("the scheduler refuses a worker", {{"why", std::string(refusal)}});
  }
  last_refusal_ = refusal;
}

void Supervisor::OnSchedulerEnd(int wait_status) {
  probe_.reset();
  const int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : EXIT_FAILURE;
  const bool is_hopeless =
      EndsServer(wait_status) || (code == EXIT_FAILURE && !scheduler_address_.has_value());
  if (is_stopping_) {
    // If SIGTERM arrives before the scheduler has blocked this signal, it kills the scheduler. This
    // counts as success.
    const bool is_early = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGTERM;
    exit_code_ = is_early ? EXIT_SUCCESS : code;
  } else if (is_hopeless && WIFEXITED(wait_status)) {
    exit_code_ = code;
  } else {
    scheduler_.LogEnd(wait_status);
    if (scheduler_.was_silent()) {
      // Another scheduler may have taken over the workers while this one gave no sign of life.
      SetStandby(true);
    }
  }
}

// Sets --standby for the scheduler's next start. false: the scheduler had the workers, and takes
// them again at once; as a standby it would wait until the workers count their scheduler as dead.
// true: another scheduler has the workers, or may have taken them while this one was silent
// (OnSchedulerEnd).
void Supervisor::SetStandby(bool stands_by) {
  if (std::exchange(stands_by_, stands_by) != stands_by) {
    scheduler_.AddArguments({absl::StrCat("--standby=", stands_by ? "true" : "false")});
  }
}

void Supervisor::TendGateway(Instant now) {
  if (!is_stopping_) {
    Start(gateway_.child(), now);
  }
  const bool has_listened = !gateway_.api_address().empty();
  const std::optional<int> wait_status = gateway_.Tend(now);
  MaybeSayReady();
  if (!wait_status.has_value() || is_stopping_) {
    return;
  }
  const bool is_hopeless = IsHopeless(*wait_status) && !gateway_.was_ready() &&
                           (WEXITSTATUS(*wait_status) != EXIT_FAILURE || !has_listened);
  if (is_hopeless) {
    exit_code_ = WEXITSTATUS(*wait_status);
  } else {
    gateway_.child().LogEnd(*wait_status);
  }
}

// Starts the other ranks only after the first report of rank 0, which then has accepted its flags.
// All ranks share these flags, so a bad flag is reported only once.
void Supervisor::TendWorkers(Instant now) {
  for (const auto& worker : workers_) {
    if (worker == workers_.front() || workers_.front()->was_heard) {
      TendWorker(*worker, now);
    }
  }
}

void Supervisor::TendWorker(WorkerChild& worker, Instant now) {
  if (worker.child.process() == nullptr) {
    MakeSocketFolder();
  }
  if (Start(worker.child, now)) {
    worker.monitor.emplace(worker.address);
    worker.loading.OnStart(now);
    worker.progress = 0;
  }
  ChildProcess* process = worker.child.process();
  if (process == nullptr) {
    return;
  }
  ReadLines(worker);
  ReadReport(worker, now);
  if (const std::optional<int> wait_status = worker.child.TakeEnd(now)) {
    worker.monitor.reset();
    if (EndsServer(*wait_status)) {
      exit_code_ = WEXITSTATUS(*wait_status);
    } else {
      worker.child.LogEnd(*wait_status);
    }
  }
}

void Supervisor::ReadLines(WorkerChild& worker) {
  ChildProcess* const process = worker.child.process();
  while (process != nullptr) {
    const std::optional<std::string> line = process->TakeLine();
    if (!line.has_value()) {
      return;
    }
    OnWorkerLine(worker, *line);
  }
}

// A restarted worker reuses the pool sizes of its first start. A newly computed size could be
// smaller, so that requests already accepted might not fit.
void Supervisor::OnWorkerLine(WorkerChild& worker, std::string_view line) {
  constexpr absl::string_view kSizes = " --kv-cache-memory-bytes=";
  const size_t begin = ToAbsl(line).find(kSizes);
  if (line.starts_with("quire_worker: ready ") && begin != std::string_view::npos &&
      !std::exchange(worker.has_sizes, true)) {
    worker.child.AddArguments(absl::StrSplit(ToAbsl(line).substr(begin + 1), ' '));
  }
  // A restarted worker keeps the HTTP port of the first start, so that Prometheus finds it.
  if (const auto http = ParseWorkerHttp(line); http.has_value() && worker.http_address.empty()) {
    worker.http_address = http->address;
    worker.child.AddArguments({http->flag});
  }
}

void Supervisor::ReadReport(WorkerChild& worker, Instant now) {
  if (const auto report = worker.monitor->Poll(now)) {
    worker.was_heard = true;
    worker.child.OnSign();
    if (report->num_steps() > 0) {
      worker.child.OnUseful();
    }
    if (report->phase() != v1::WORKER_PHASE_LOADING || report->progress() != worker.progress) {
      worker.loading.OnSign();
    }
    worker.progress = report->progress();
  }
  if (worker.loading.IsSilent(now)) {
    worker.child.Kill("it loads without progress");
  }
}

bool Supervisor::Start(SupervisedChild& child, Instant now) {
  const absl::StatusOr<bool> started = child.MaybeStart(now);
  if (started.ok()) {
    return *started;
  }
  if (was_ready_) {
    LogError("a program of the server cannot be started",
             {{"program", child.name()}, {"error", std::string(started.status().message())}});
  } else {
    Say(ToStd(started.status().message()));
    exit_code_ = EXIT_FAILURE;
  }
  return false;
}

bool Supervisor::EndsServer(int wait_status) const {
  return !was_ready_ && IsHopeless(wait_status);
}

// Sleeps until a signal or output of the scheduler arrives, but at most kMaxSleepMillis, because
// this poll(2) does not watch the workers' reports and the answers to the probe.
void Supervisor::Wait() {
  ChildProcess* scheduler = scheduler_.process();
  const int output_fd = scheduler == nullptr ? -1 : scheduler->output_fd();
  pollfd fds[2] = {{.fd = signal_fd_, .events = POLLIN, .revents = 0},
                   {.fd = output_fd, .events = POLLIN, .revents = 0}};
  ::poll(fds, 2, kMaxSleepMillis);
}

void Supervisor::ReadSignals() {
  signalfd_siginfo info;
  while (::read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) {
      continue;
    }
    // The scheduler gets a second signal too. If this signal comes at least a second after the
    // first, the scheduler ends running requests. A second signal that is SIGHUP is dropped:
    // closing the terminal after Ctrl-C is no request to end streams.
    if (std::exchange(is_stopping_, true) && info.ssi_signo == SIGHUP) {
      continue;
    }
    if (ChildProcess* gateway = gateway_.child().process(); gateway != nullptr) {
      gateway->Signal(SIGTERM);
      gateway->Signal(SIGCONT);
    }
    if (ChildProcess* scheduler = scheduler_.process(); scheduler != nullptr) {
      scheduler->Signal(SIGTERM);
      scheduler->Signal(SIGCONT);  // a stopped scheduler would not see SIGTERM
    } else {
      exit_code_ = EXIT_SUCCESS;
    }
  }
}

// Asks the workers and the gateway to stop, and waits at most kStopNs until they have ended. The
// destructor of ChildProcess kills programs that still run after that.
void Supervisor::StopWorkers() {
  bool is_running = true;
  if (ChildProcess* gateway = gateway_.child().process(); gateway != nullptr) {
    gateway->Signal(SIGINT);  // a second signal, which ends the gateway's requests
  }
  for (const auto& worker : workers_) {
    if (ChildProcess* process = worker->child.process(); process != nullptr) {
      process->Signal(SIGTERM);
      process->Signal(SIGCONT);
    }
  }
  for (const Instant start = SteadyNow(); is_running && SteadyNow() - start < kStopNs;) {
    ChildProcess* const gateway = gateway_.child().process();
    is_running = gateway != nullptr && !gateway->Poll().has_value();
    for (const auto& worker : workers_) {
      ChildProcess* process = worker->child.process();
      is_running |= process != nullptr && !process->Poll().has_value();
    }
    ::usleep(is_running ? kStopPollMicros : 0);
  }
}

}  // namespace quire
