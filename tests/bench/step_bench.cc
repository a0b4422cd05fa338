// step_bench: what a step of decoding costs beside the model, for the scheduler and for workers
// that wait for its next plan.
//
//   step_bench [--sequences 64,256,1024] [--ranks 1,4,8] [--steps 1000] [--tcp]
//
// fake links:  the scheduler's loop, core and worker group with answers that are there at once.
//              `plan` is the core's, `send` encodes the plan and hands it to each link, `merge`
//              makes one result of all ranks' (in the product on a thread of gRPC), `apply` the
//              core's.
// processes:   the whole loop and its gRPC links with workers in processes of their own, over
//              Unix sockets or TCP. A model takes --forward_us, in which the loop publishes what
//              the step before gave. `step` is the time from answer to answer, `worker` what of it
//              the slowest rank was busy, and `gap` the rest: so long a rank waits between two
//              steps, for its answer's way, the scheduler, and the plan's way. Then the processor
//              time of a step: of the loop's thread, and of the scheduler with gRPC's threads.
//
// All are medians, with 99th percentiles in brackets. Ranks that have no processor to themselves
// wait for each other: their gaps say little, the processor times still hold.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "proto/v1/worker.pb.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/flags/command_line.h"
#include "common/wire/step_codec.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/rpc/grpc_worker_group.h"
#include "scheduler/rpc/wire_message.h"
#include "tests/bench/timed_worker.h"

#include <sys/wait.h>

ABSL_FLAG(std::string, sequences, "64,256,1024", "running sequences, comma-separated");
ABSL_FLAG(std::string, ranks, "1,4,8", "sizes of the group, comma-separated");
ABSL_FLAG(int, steps, 1000, "timed steps");
ABSL_FLAG(int, forward_us, 3000, "what the workers' model takes");
ABSL_FLAG(bool, tcp, false, "links over TCP on loopback, and not over Unix sockets");

namespace quire {
namespace {

constexpr int32_t kPromptTokens = 16;
constexpr int32_t kBlockSizeTokens = 16;

struct Shape {
  int32_t num_sequences = 0;
  int32_t num_ranks = 0;
  int32_t num_steps = 0;

  int32_t max_tokens() const { return num_steps + 2; }
  int32_t max_model_len() const { return kPromptTokens + max_tokens() + kBlockSizeTokens; }
};

GroupSettings SettingsOf(const Shape& shape) {
  GroupSettings settings;
  settings.model = TimedConfig(shape.max_model_len());
  settings.block_size_tokens = kBlockSizeTokens;
  settings.num_blocks_override =
      1 + shape.num_sequences * (1 + shape.max_model_len() / kBlockSizeTokens);
  settings.max_sequences = shape.num_sequences;
  settings.max_tokens_per_step = shape.num_sequences * kPromptTokens;
  return settings;
}

class Figure {
 public:
  void Add(int64_t nanos) { values_.push_back(static_cast<double>(nanos) / kNanosPerMicro); }

  // "12.3 (45.6)"
  std::string ToString() {
    char text[64];
    std::snprintf(text, sizeof(text), "%.1f (%.1f)", Percentile(0.5), Percentile(0.99));
    return text;
  }

 private:
  double Percentile(double fraction) {
    const auto nth = values_.begin() + static_cast<std::ptrdiff_t>(
                                           fraction * static_cast<double>(values_.size() - 1));
    std::nth_element(values_.begin(), nth, values_.end());
    return *nth;
  }

  std::vector<double> values_;
};

int64_t CpuNanos(clockid_t clock) {
  timespec time = {};
  QUIRE_CHECK(clock_gettime(clock, &time) == 0);
  return time.tv_sec * kNanosPerSecond + time.tv_nsec;
}

// Times steps in which every sequence decodes, and stops the loop after the last.
class Times : public LoopObserver {
 public:
  Times(const Shape& shape, Inbox* inbox) : shape_(shape), inbox_(inbox) {}

  void OnStep(const StepObservation& observed) override {
    const Instant now = SteadyNow();
    const Instant last = std::exchange(last_, now);
    if (observed.num_tokens != shape_.num_sequences) {
      return;  // prompts
    }
    if (num_steps_++ == 0) {
      process_begin_ = CpuNanos(CLOCK_PROCESS_CPUTIME_ID);
      thread_begin_ = CpuNanos(CLOCK_THREAD_CPUTIME_ID);
      return;
    }
    const StepTimings& timings = observed.worker;
    const int64_t busy =
        (timings.build_us + timings.forward_us + timings.sample_us) * kNanosPerMicro;
    step.Add(now - last);
    worker.Add(busy);
    gap.Add(now - last - busy);
    plan.Add(observed.plan_ns);
    apply.Add(observed.apply_ns);
    if (num_steps_ == shape_.num_steps) {
      process_us = MicrosSince(process_begin_, CLOCK_PROCESS_CPUTIME_ID);
      thread_us = MicrosSince(thread_begin_, CLOCK_THREAD_CPUTIME_ID);
      inbox_->Post(Stop{});
    }
  }

  Figure step, worker, gap, plan, apply;
  double process_us = 0;  // a step
  double thread_us = 0;

 private:
  double MicrosSince(int64_t begin, clockid_t clock) const {
    return static_cast<double>(CpuNanos(clock) - begin) / kNanosPerMicro / (num_steps_ - 1);
  }

  const Shape shape_;
  Inbox* const inbox_;
  Instant last_ = 0;
  int num_steps_ = 0;
  int64_t process_begin_ = 0;
  int64_t thread_begin_ = 0;
};

class DeafStream : public ResponseStream {
 public:
  bool Write(SequenceUpdate /*update*/, Instant /*now*/) override { return true; }
  void End(absl::Status status) override {
    QUIRE_CHECK(status.ok() || absl::IsUnavailable(status));  // the loop is stopped
  }
  Instant stalled_since() const override { return kInfiniteFuture; }
};

// The group as GrpcWorkerGroup drives it, with ranks that answer at once.
class FakeLinks : public WorkerClient {
 public:
  FakeLinks(const Shape& shape, Inbox* inbox)
      : settings_(SettingsOf(shape)),
        group_(settings_, shape.num_ranks, WallClockNanos(), GroupTiming()),
        links_(static_cast<size_t>(shape.num_ranks)),
        inbox_(inbox) {
    group_.Tick(SteadyNow());
    while (DoActions()) {
    }
    QUIRE_CHECK(group_.is_ready());
  }

  void SendStep(const StepPlan& plan) override {
    const Instant begin = SteadyNow();
    EncodePlan(plan, &request_);
    bytes_ = SerializeMessage(request_);
    group_.Plan(plan, begin);
    DoActions();
    send.Add(SteadyNow() - begin);

    StepResult result{.header = plan.header, .plan_digest = plan.digest};
    for (const SequenceSlice& slice : plan.slices) {
      result.sampled.push_back({.handle = slice.handle, .token_id = 7});
    }
    std::vector<StepResult> results(links_.size(), result);
    const Instant answered = SteadyNow();
    for (size_t rank = 0; rank < links_.size(); ++rank) {
      group_.OnAnswer(links_[rank], std::move(results[rank]), answered);
    }
    DoActions();
    merge.Add(SteadyNow() - answered);
  }
  void AbandonEpoch(uint64_t /*group_epoch*/) override { QUIRE_CHECK(false); }

  Figure send, merge;

 private:
  bool DoActions() {
    std::vector<GroupAction> actions = group_.TakeActions();
    for (GroupAction& action : actions) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
    return !actions.empty();
  }
  void Do(const DialLink& action) { links_[static_cast<size_t>(action.link.rank)] = action.link; }
  void Do(const GreetWorker& action) {
    WorkerHello hello;
    hello.uuid = std::to_string(action.link.rank);
    hello.config_hash = HashOf(settings_.model);
    hello.num_blocks_max = *settings_.num_blocks_override;
    hello.kv_cache_dtype = DType::kF32;
    hello.vocab_size = settings_.model.vocab_size;
    WorkerReport report;  // the group asks only workers that have reported
    report.uuid = hello.uuid;
    report.phase = WorkerPhase::kIdle;
    group_.OnHello(action.link, std::move(hello), SteadyNow());
    group_.OnReport(action.link, report, SteadyNow());
  }
  void Do(const BeginWorkerEpoch& action) {
    group_.OnEpochBegun(action.link, absl::OkStatus(), SteadyNow());
  }
  void Do(const SendPlan& action) {
    bytes_of_link_[static_cast<size_t>(action.link.rank)] = bytes_;  // as a stream takes them
  }
  void Do(const ReportReady& action) {
    inbox_->Post(GroupReady{.scheduler_incarnation = action.scheduler_incarnation,
                            .group_epoch = action.group_epoch,
                            .limits = action.agreement.limits});
  }
  void Do(ReportResult& action) { inbox_->Post(StepReply{std::move(action.result)}); }
  template <typename Action>
  void Do(const Action& /*action*/) {}

  const GroupSettings settings_;
  WorkerGroup group_;
  std::vector<LinkId> links_;
  Inbox* const inbox_;
  v1::StepRequest request_;
  grpc::ByteBuffer bytes_;
  std::vector<grpc::ByteBuffer> bytes_of_link_ = std::vector<grpc::ByteBuffer>(links_.size());
};

void AddRequests(const Shape& shape, Inbox* inbox) {
  for (int32_t i = 0; i < shape.num_sequences; ++i) {
    AddRequest add;
    add.request.prompt_token_ids.assign(kPromptTokens, i % 64);
    add.request.max_tokens = shape.max_tokens();
    add.stream = std::make_shared<DeafStream>();
    QUIRE_CHECK(inbox->Add(std::move(add)).ok());
  }
}

Times RunLoop(const Shape& shape, Inbox* inbox, WorkerClient* workers) {
  Times times(shape, inbox);
  ServingState state;
  LoopConfig config;
  config.core.max_queued_requests = shape.num_sequences;
  config.core.watermark = 0;
  SchedulerLoop loop(config,
                     {.inbox = inbox, .workers = workers, .state = &state, .observer = &times});
  loop.Run();
  return times;
}

void BenchFakeLinks(const Shape& shape) {
  Inbox inbox;
  AddRequests(shape, &inbox);
  FakeLinks links(shape, &inbox);
  Times times = RunLoop(shape, &inbox, &links);
  std::printf("fake links  %d ranks %5d sequences: plan %s + send %s + merge %s + apply %s us\n",
              shape.num_ranks,
              shape.num_sequences,
              times.plan.ToString().c_str(),
              links.send.ToString().c_str(),
              links.merge.ToString().c_str(),
              times.apply.ToString().c_str());
}

void BenchLinks(const Shape& shape, const std::vector<Address>& addresses) {
  Inbox inbox;
  AddRequests(shape, &inbox);
  GrpcWorkerGroup workers(
      addresses,
      SettingsOf(shape),
      GroupTiming(),
      &inbox,
      {.on_refusal = [](const absl::Status&) {}, .on_ranks = [](const auto&) {}});
  workers.Start();
  Times times = RunLoop(shape, &inbox, &workers);
  std::printf(
      "processes   %d ranks %5d sequences: step %s, worker %s, gap %s us; "
      "processor time loop %.1f, scheduler %.1f us\n",
      shape.num_ranks,
      shape.num_sequences,
      times.step.ToString().c_str(),
      times.worker.ToString().c_str(),
      times.gap.ToString().c_str(),
      times.thread_us,
      times.process_us);
}

// Workers in processes of their own; they end with the object.
class Workers {
 public:
  explicit Workers(const Shape& shape) {
    for (int32_t rank = 0; rank < shape.num_ranks; ++rank) {
      const std::string path = absl::StrCat("/tmp/quire_step_bench_", getpid(), "_", rank);
      Start({.config = TimedConfig(shape.max_model_len()),
             .place = {.rank = rank, .size = shape.num_ranks},
             .forward_ns = absl::GetFlag(FLAGS_forward_us) * kNanosPerMicro,
             .listen = absl::GetFlag(FLAGS_tcp) ? Address{.host = "127.0.0.1"}
                                                : Address{.unix_path = path},
             .peers_path = path + ".ranks"});
    }
  }
  ~Workers() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    for (const std::string& path : paths_) {
      unlink(path.c_str());
    }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  const std::vector<Address>& addresses() const { return addresses_; }

 private:
  void Start(const TimedWorker& worker) {
    int ends[2];
    QUIRE_CHECK(pipe(ends) == 0);
    const pid_t pid = fork();
    QUIRE_CHECK(pid >= 0);
    if (pid == 0) {
      RunTimedWorker(worker, [&ends](const Address& address) {
        const std::string text = address.ToString();
        QUIRE_CHECK(write(ends[1], text.data(), text.size()) > 0);
      });
    }
    char text[256];
    const ssize_t size = read(ends[0], text, sizeof(text));
    QUIRE_CHECK(size > 0);
    close(ends[0]);
    close(ends[1]);
    pids_.push_back(pid);
    paths_.insert(paths_.end(), {worker.listen.unix_path, worker.peers_path});
    addresses_.push_back(*ParseAddress(std::string_view(text, static_cast<size_t>(size))));
  }

  std::vector<pid_t> pids_;
  std::vector<std::string> paths_;
  std::vector<Address> addresses_;
};

// Runs body in a child process. gRPC does not survive a fork, so the parent, which forks again,
// must never use gRPC.
void RunInChild(const std::function<void()>& body) {
  const pid_t pid = fork();
  QUIRE_CHECK(pid >= 0);
  if (pid == 0) {
    SetLogLevel(LogLevel::kWarning);
    body();
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  QUIRE_CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

std::vector<int32_t> Numbers(const std::string& text) {
  std::vector<int32_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    numbers.push_back(0);
    if (!absl::SimpleAtoi(part, &numbers.back()) || numbers.back() < 1) {
      std::fprintf(stderr, "step_bench: not a number above 0: %s\n", text.c_str());
      std::exit(kExitUsage);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  return numbers;
}

void Main() {
  for (const int32_t num_ranks : Numbers(absl::GetFlag(FLAGS_ranks))) {
    for (const int32_t num_sequences : Numbers(absl::GetFlag(FLAGS_sequences))) {
      const Shape shape = {.num_sequences = num_sequences,
                           .num_ranks = num_ranks,
                           .num_steps = std::max(2, absl::GetFlag(FLAGS_steps))};
      RunInChild([&] { BenchFakeLinks(shape); });
      const Workers workers(shape);
      RunInChild([&] { BenchLinks(shape, workers.addresses()); });
    }
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::ParseCommandLineOrExit(
      argc,
      argv,
      {.name = "step_bench", .usage = "[flags]", .summary = "What a step costs beside the model."});
  quire::Main();
  return 0;
}
