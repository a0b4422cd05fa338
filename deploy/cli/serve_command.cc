#include "deploy/cli/serve_command.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "deploy/cli/child_process.h"

#include <sys/signalfd.h>
#include <sys/wait.h>

namespace quire {
namespace {

// Flags of quire_worker alone. --model goes to both; everything else is the scheduler's.
constexpr std::array<std::string_view, 14> kWorkerFlags = {"threads",
                                                           "kv-cache-memory-bytes",
                                                           "num-gpu-blocks-override",
                                                           "swap-space",
                                                           "device",
                                                           "device-index",
                                                           "dtype",
                                                           "enforce-eager",
                                                           "batch-invariant",
                                                           "quantization",
                                                           "gemm-cache",
                                                           "gpu-memory-utilization",
                                                           "cpu-isa",
                                                           "load-format"};

constexpr int kExitBadArguments = 2;

// A worker that dies again and again is not a passing fault.
constexpr int kMaxWorkerStartsPerWindow = 5;
constexpr Instant kWorkerStartWindow = 60 * kNanosPerSecond;
constexpr Instant kFirstRestartDelay = 100 * kNanosPerMilli;
constexpr int kPollMillis = 50;

constexpr char kUsage[] =
    R"(usage: quire serve --model DIR [flags]

Starts a scheduler and a worker on this machine and prints
    quire: ready grpc=HOST:PORT http=HOST:PORT
when requests can be sent. Flags (those of quire_scheduler and quire_worker; --help of either
lists all of them):
    --model DIR                     Hugging Face model directory
    --host 127.0.0.1 --port 50051   gRPC address; port 0 picks a free one
    --http-port 8000                metrics and health; port 0 picks a free one
    --max-model-len N               longest sequence, prompt and output
    --max-num-seqs N                sequences in one step
    --max-num-batched-tokens N      tokens in one step
    --block-size N                  tokens in one KV block
    --preemption-mode auto|recompute|swap   what becomes of the blocks of a preempted request
    --scheduling-policy fcfs|priority|fair   whose turn it is
    --noenable_prefix_caching       requests share no blocks of equal beginnings
    --kv-cache-dtype auto|float32|bfloat16|float16|fp8|int8 (int8: a CPU)
    --kv-cache-memory-bytes N       memory for KV blocks
    --device auto|cpu|cuda|emu      what computes; auto: a GPU where there is one
    --quantization none|fp8         8 bits for the layers' weights and activations (a GPU)
    --gpu-memory-utilization 0.9    share of a GPU's memory to use
    --num-gpu-blocks-override N     KV blocks, whatever the memory
    --swap-space 4GiB               host memory for blocks of preempted requests
    --threads N                     threads of the CPU worker
    --admin-address ADDR            take the operator's calls here: quire prefix
    --max-pinned-share 0.5          most of the KV cache that pinned prefixes may take
    --step-log FILE                 record scheduling for quire replay; holds prompts and output
    --shutdown-timeout SECONDS      how long running requests may finish after SIGTERM
)";

std::string FlagName(std::string_view arg) {
  arg.remove_prefix(std::min(arg.find_first_not_of('-'), arg.size()));
  std::string name(arg.substr(0, arg.find('=')));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// The folder of this program: its siblings are the programs it starts.
std::string ProgramFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

// Owns a private folder for the worker's socket.
class SocketFolder {
 public:
  SocketFolder() {
    const char* base = ::getenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe)
    std::string pattern = absl::StrCat(base != nullptr ? base : "/tmp", "/quire-XXXXXX");
    if (::mkdtemp(pattern.data()) == nullptr) {
      pattern = "/tmp/quire-XXXXXX";
      path_ = ::mkdtemp(pattern.data()) != nullptr ? pattern : "";
    } else {
      path_ = pattern;
    }
  }
  ~SocketFolder() {
    std::error_code error;
    if (!path_.empty()) {
      std::filesystem::remove_all(path_, error);
    }
  }
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Supervisor {
 public:
  Supervisor(std::vector<std::string> scheduler, std::vector<std::string> worker, int signal_fd)
      : scheduler_argv_(std::move(scheduler)),
        worker_argv_(std::move(worker)),
        signal_fd_(signal_fd) {}

  int Run() {
    if (!StartWorker() || !StartScheduler()) {
      return 1;
    }
    while (!exit_code_.has_value()) {
      Wait();
      ReadSignals();
      ReadLines();
      WatchScheduler();
      WatchWorker();
    }
    StopWorker();
    return *exit_code_;
  }

 private:
  bool StartWorker() {
    absl::StatusOr<ChildProcess> child = ChildProcess::Start(worker_argv_);
    if (!child.ok()) {
      LogError("worker cannot start", {{"error", std::string(child.status().message())}});
      return false;
    }
    worker_ = *std::move(child);
    worker_starts_.push_back(SteadyNow());
    return true;
  }

  bool StartScheduler() {
    absl::StatusOr<ChildProcess> child = ChildProcess::Start(scheduler_argv_);
    if (!child.ok()) {
      LogError("scheduler cannot start", {{"error", std::string(child.status().message())}});
      return false;
    }
    scheduler_ = *std::move(child);
    return true;
  }

  // Sleeps until a signal or a line comes, at most kPollMillis: the end of a child shows as the end
  // of its output, but a child may close its output and live on.
  void Wait() {
    pollfd fds[2] = {{.fd = signal_fd_, .events = POLLIN, .revents = 0},
                     {.fd = ready_ ? -1 : scheduler_->output_fd(), .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, kPollMillis);
  }

  void ReadSignals() {
    signalfd_siginfo info;
    while (::read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD && !stopping_) {
        stopping_ = true;
        scheduler_->Signal(SIGTERM);
      }
    }
  }

  void ReadLines() {
    while (std::optional<std::string> line = scheduler_->TakeLine()) {
      absl::string_view rest = *line;
      if (absl::ConsumePrefix(&rest, "quire_scheduler: ready ") && !ready_) {
        ready_ = true;
        std::printf("quire: ready %s\n", std::string(rest).c_str());
        std::fflush(stdout);
      }
    }
    while (worker_.has_value() && worker_->TakeLine().has_value()) {
      // The worker's own ready line is of no interest here; an unread pipe would block it.
    }
  }

  void WatchScheduler() {
    std::optional<int> status = scheduler_->Poll();
    if (!status.has_value()) {
      return;
    }
    if (!stopping_) {
      LogError("scheduler ended", {{"how", DescribeExit(*status)}});
    }
    bool clean = WIFEXITED(*status) && (stopping_ || WEXITSTATUS(*status) != 0);
    exit_code_ = clean ? WEXITSTATUS(*status) : 1;
  }

  void WatchWorker() {
    if (exit_code_.has_value() || stopping_) {
      return;
    }
    Instant now = SteadyNow();
    if (!worker_.has_value()) {
      if (now >= restart_at_ && !StartWorker()) {
        GiveUp(1);
      }
      return;
    }
    std::optional<int> status = worker_->Poll();
    if (!status.has_value()) {
      return;
    }
    LogError("worker ended", {{"how", DescribeExit(*status)}});
    bool never_served = !ready_ && WIFEXITED(*status);
    std::erase_if(worker_starts_, [&](Instant at) { return now - at > kWorkerStartWindow; });
    worker_.reset();
    if (never_served || worker_starts_.size() >= kMaxWorkerStartsPerWindow) {
      GiveUp(never_served ? WEXITSTATUS(*status) : 1);
      return;
    }
    restart_at_ = now + (kFirstRestartDelay << worker_starts_.size());
  }

  // Stops the scheduler without a drain: nothing can be computed any more.
  void GiveUp(int code) {
    scheduler_->Signal(SIGKILL);
    exit_code_ = code;
  }

  void StopWorker() {
    if (!worker_.has_value()) {
      return;
    }
    worker_->Signal(SIGTERM);
    for (Instant start = SteadyNow(); !worker_->Poll().has_value();) {
      if (SteadyNow() - start > 5 * kNanosPerSecond) {
        return;  // ~ChildProcess kills it
      }
      ::usleep(5'000);
    }
  }

  std::vector<std::string> scheduler_argv_;
  std::vector<std::string> worker_argv_;
  int signal_fd_;
  std::optional<ChildProcess> scheduler_;
  std::optional<ChildProcess> worker_;
  std::vector<Instant> worker_starts_;
  Instant restart_at_ = 0;
  bool ready_ = false;
  bool stopping_ = false;
  std::optional<int> exit_code_;
};

}  // namespace

absl::StatusOr<ServeArguments> SplitServeArguments(const std::vector<std::string>& args) {
  ServeArguments split;
  bool has_model = false;
  for (size_t i = 0; i < args.size(); ++i) {
    std::vector<std::string> words = {args[i]};
    bool positional_model = i == 0 && !args[0].starts_with('-');
    if (positional_model) {
      words = {"--model", args[0]};
    } else if (!args[i].starts_with("--")) {
      return absl::InvalidArgumentError(absl::StrCat("serve: not a flag: ", args[i]));
    }
    std::string name = FlagName(words[0]);
    bool value_follows = !positional_model && args[i].find('=') == std::string::npos &&
                         i + 1 < args.size() && !args[i + 1].starts_with("--");
    if (value_follows) {
      words.push_back(args[++i]);
    }
    bool is_model = name == "model";
    has_model |= is_model;
    bool worker_only =
        std::find(kWorkerFlags.begin(), kWorkerFlags.end(), name) != kWorkerFlags.end();
    if (is_model || worker_only) {
      split.worker.insert(split.worker.end(), words.begin(), words.end());
    }
    if (is_model || !worker_only) {
      split.scheduler.insert(split.scheduler.end(), words.begin(), words.end());
    }
  }
  if (!has_model) {
    return absl::InvalidArgumentError("serve: --model DIR is needed");
  }
  return split;
}

int RunServe(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end()) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  absl::StatusOr<ServeArguments> split = SplitServeArguments(args);
  if (!split.ok()) {
    std::fprintf(stderr, "quire: %s\n", std::string(split.status().message()).c_str());
    return kExitBadArguments;
  }
  SocketFolder sockets;
  if (sockets.path().empty()) {
    std::fputs("quire: serve: cannot make a folder for the worker's socket\n", stderr);
    return 1;
  }
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGCHLD, SIGHUP}) {
    sigaddset(&signals, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  int signal_fd = ::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);

  std::string folder = ProgramFolder();
  std::string socket = absl::StrCat("unix:", sockets.path(), "/worker.sock");
  std::vector<std::string> worker = {folder + "/quire_worker", "--listen", socket};
  worker.insert(worker.end(), split->worker.begin(), split->worker.end());
  std::vector<std::string> scheduler = {folder + "/quire_scheduler", "--workers", socket};
  scheduler.insert(scheduler.end(), split->scheduler.begin(), split->scheduler.end());
  int code = Supervisor(std::move(scheduler), std::move(worker), signal_fd).Run();
  ::close(signal_fd);
  return code;
}

}  // namespace quire
