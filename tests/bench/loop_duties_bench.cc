// loop_duties_bench: the longest time that the scheduling loop's thread spends in each of its
// duties, at the largest settings allowed: 4,096 sequences, 256 pinned prefixes of 4,000 tokens,
// 100,000 blocks, 1,024 requests and as many resumed ones that wait. Tokens stand still meanwhile.
//
//   loop_duties_bench [prefixes] [tokens of a prefix] [losses]
//
// crowd:       all of that; the workers are lost again and again.
// first waits: the pool is nearly full, and 16 resumed sequences of 98,000 tokens that begin like a
//              running request lack room: they are asked about in every step.
// swapped:     16 such sequences in host memory lack room to come back.
// urgent:      16 such sequences take the room of those behind them, by swapping.
// short:       4,096 sequences outgrow the pool, and the cheapest are preempted.
// suspects:    two crashes at once suspect 4,096 sequences.
// largest:     what a plan of 32 MiB of introductions costs on its way to the workers.
//
// Processor time of the thread in milliseconds, so that other work beside it does not count. The
// loop, its core and its router are the product's; streams, workers and their group are not.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/wire/step_codec.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/metrics/scheduler_metrics.h"
#include "scheduler/rpc/served_model.h"
#include "scheduler/rpc/state_message.h"
#include "scheduler/rpc/wire_message.h"

namespace quire {
namespace {

constexpr int32_t kNumSequences = 4096;
constexpr int32_t kNumWaiting = 1024;
constexpr int32_t kLongPrompt = 131'000;
constexpr int32_t kSharedPrompt = 90'000;
constexpr int32_t kBlockSize = 16;
constexpr StepLimits kLimits{.num_blocks = 100'001,
                             .num_host_blocks = 50'000,
                             .block_size_tokens = kBlockSize,
                             .max_sequences = kNumSequences,
                             .max_tokens_per_step = 8192,
                             .max_model_len = 131'072,
                             .vocab_size = 128'000};

Instant ThreadNanos() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return Instant{time.tv_sec} * kNanosPerSecond + time.tv_nsec;
}

class Longest {
 public:
  explicit Longest(std::string scenario) : scenario_(std::move(scenario)) {}
  void Add(const std::string& duty, int64_t nanos) {
    const auto [place, is_new] = nanos_.emplace(duty, nanos);
    place->second = std::max(place->second, nanos);
    if (is_new) {
      order_.push_back(duty);
    }
  }
  template <typename Call>
  void Time(const std::string& duty, const Call& call) {
    const Instant begin = ThreadNanos();
    call();
    Add(duty, ThreadNanos() - begin);
  }
  void Clear() {
    nanos_.clear();
    order_.clear();
  }
  void Print() const {
    for (const std::string& duty : order_) {
      std::printf("%-12s %-34s %9.2f ms\n",
                  scenario_.c_str(),
                  duty.c_str(),
                  static_cast<double>(nanos_.at(duty)) / kNanosPerMilli);
    }
  }

 private:
  std::string scenario_;
  std::map<std::string, int64_t> nanos_;
  std::vector<std::string> order_;
};

class Unread : public ResponseStream {
 public:
  bool Write(SequenceUpdate /*update*/, Instant /*now*/) override { return true; }
  void End(absl::Status /*status*/) override {}
  Instant stalled_since() const override { return kInfiniteFuture; }
  std::string_view request_id() const override { return "00112233-4455-6677-8899-aabbccddeeff"; }
};

// Samples a token wherever a slice reaches the last known one.
class Workers : public WorkerClient {
 public:
  void SendStep(const StepPlan& plan) override {
    result_ = StepResult{.header = plan.header,
                         .plan_digest = plan.digest,
                         .swaps_done_step_id = plan.header.step_id};
    result_.timings.forward_us = 100 + static_cast<int64_t>(plan.slices.size());
    for (const SequenceIntroduction& sequence : plan.introductions) {
      gaps_[sequence.handle] =
          static_cast<int32_t>(sequence.token_ids.size()) - sequence.num_computed_tokens;
    }
    for (const SequenceSlice& slice : plan.slices) {
      int32_t& gap = gaps_[slice.handle];
      gap -= slice.num_tokens;
      if (gap == 0) {
        result_.sampled.push_back({.handle = slice.handle, .token_id = 7});
        gap = 1;
      }
    }
    has_result_ = true;
  }
  void AbandonEpoch(uint64_t /*group_epoch*/) override {}

  bool has_result() const { return has_result_; }
  StepResult TakeResult() {
    has_result_ = false;
    return std::move(result_);
  }

 private:
  std::vector<int32_t> gaps_ = std::vector<int32_t>(kNumSequences);
  StepResult result_;
  bool has_result_ = false;
};

// A loop with everything around it, and the metrics that the product has.
class World : public SchedulerMetrics {
 public:
  World(const std::string& scenario, MetricsRegistry* registry, CoreConfig config)
      : SchedulerMetrics(registry, "1", "model", kLimits.max_model_len, true),
        longest(scenario),
        registry_(registry),
        loop_({.core = Largest(config)},
              {.inbox = &inbox_,
               .workers = &workers_,
               .state = &state_,
               .observer = this,
               .clock = ThreadNanos}) {}
  ~World() override { longest.Print(); }

  void Turn(const std::string& duty) {
    turn_began_ = ThreadNanos();
    longest.Time(duty, [this] { loop_.Turn(absl::ZeroDuration()); });
  }
  void BeginEpoch(bool after_crash = false) {
    GroupReady ready{.scheduler_incarnation = 1, .group_epoch = ++group_epoch_, .limits = kLimits};
    ready.after_crash = after_crash;
    inbox_.Post(std::move(ready));
    is_first_step_ = true;
    Turn("the turn that begins an epoch");
  }
  void Lose(bool by_crash) {
    if (workers_.has_result()) {
      workers_.TakeResult();
    }
    inbox_.Post(GroupLost{group_epoch_, absl::UnavailableError("lost")});
    Turn("the turn that loses the workers");
    BeginEpoch(by_crash);
  }
  // False: nothing is left to do.
  bool Step() {
    if (!workers_.has_result()) {
      return false;
    }
    inbox_.Post(StepReply{workers_.TakeResult()});
    Turn("a turn with a step");
    return true;
  }
  void Steps(int32_t count) {
    for (int32_t i = 0; i < count && Step(); ++i) {
    }
  }

  void Pin(int32_t num_tokens, TokenId first_token) {
    PinCall call{.token_ids = Tokens(num_tokens, first_token)};
    call.answer = [this](const absl::StatusOr<PrefixInfo>& info) {
      QUIRE_CHECK(info.ok());
      ++num_pinned;
    };
    QUIRE_CHECK(inbox_.Add(std::move(call)).ok());
    Turn("a turn with a prefix to pin");
  }
  void Add(Request request) {
    OutputOptions output;
    for (const ResumedSequence& resumed : request.resumed) {
      output.received.push_back({.num_tokens = static_cast<int32_t>(resumed.token_ids.size())});
    }
    AddRequest add{.request = std::move(request), .output = std::move(output), .stream = stream_};
    QUIRE_CHECK(inbox_.Add(std::move(add)).ok());
  }
  // Each request begins with another token, from first_token on.
  void AddMany(int32_t count, Request request, TokenId first_token = 2000) {
    for (int32_t i = 0; i < count; ++i) {
      request.prompt_token_ids.front() = first_token + i;
      Add(request);
    }
    Turn("thousands of requests that arrive");
  }
  static std::vector<TokenId> Tokens(int32_t count, TokenId first_token) {
    std::vector<TokenId> tokens(static_cast<size_t>(count), 11);
    tokens.front() = first_token;
    return tokens;
  }
  static Request Prompt(int32_t num_tokens, TokenId first_token, int32_t max_tokens) {
    Request request{.prompt_token_ids = Tokens(num_tokens, first_token)};
    request.max_tokens = max_tokens;
    return request;
  }
  // 16 sequences that share 5,625 blocks, and have 500 each.
  static Request Resumed(TokenId first_token, int32_t priority) {
    constexpr int32_t kNumOutputTokens = 8000;
    Request request = Prompt(kSharedPrompt, first_token, kNumOutputTokens + 500);
    request.num_sequences = 16;
    request.priority = priority;
    request.is_resumed = true;
    for (TokenId token = 20; token < 36; ++token) {
      request.resumed.push_back({.token_ids = Tokens(kNumOutputTokens, token)});
    }
    return request;
  }

  // Lookups before this point do not count.
  void BeginToMeasure() {
    longest.Clear();
    is_first_step_ = true;
  }

  void LookOn() {
    Turn("a turn with nothing to do: stats");
    std::shared_ptr<const LoopState> moment;
    inbox_.Post(GetStateCall{.answer = [&moment](const auto& state) { moment = state; }});
    Turn("GetState: stats and block map");
    ServedModel model;
    model.names = {"model"};
    longest.Time("GetState: its message",
                 [&] { SerializeMessage(StateMessage(model, state_.Get(), *moment)); });
    longest.Time("a scrape, on its own thread", [this] { registry_->AllText(); });
  }

  void AbortAll() {
    inbox_.Post(quire::AbortAll{absl::UnavailableError("ends")});
    Turn("the turn that ends all requests");
  }

  void OnGroupReady(const StepLimits& limits, const std::string& type, int64_t bytes) override {
    longest.Add("an epoch's begin", ThreadNanos() - turn_began_);
    SchedulerMetrics::OnGroupReady(limits, type, bytes);
  }
  void OnGroupLost() override {
    longest.Add("a loss", ThreadNanos() - turn_began_);
    SchedulerMetrics::OnGroupLost();
  }
  void OnStep(const StepObservation& step) override {
    longest.Add(std::exchange(is_first_step_, false) ? "a plan, the first" : "a plan",
                step.plan_ns);
    longest.Add("an apply", step.apply_ns);
    longest.Add("a publish", step.publish_ns);
    SchedulerMetrics::OnStep(step);
  }
  CoreStats stats() const { return state_.Get().stats; }

  Longest longest;
  int32_t num_pinned = 0;

 private:
  static CoreConfig Largest(CoreConfig config) {
    config.max_queued_requests = 2 * kNumSequences;
    config.max_queued_tokens = 10'000'000;
    config.max_resumed_requests = int64_t{2} * kNumSequences;
    config.prefix_caching = true;
    config.max_pinned_share = 0.7;
    return config;
  }

  MetricsRegistry* const registry_;
  Inbox inbox_;
  Workers workers_;
  ServingState state_;
  SchedulerLoop loop_;
  std::shared_ptr<ResponseStream> stream_ = std::make_shared<Unread>();
  uint64_t group_epoch_ = 0;
  Instant turn_began_ = 0;
  bool is_first_step_ = true;
};

void Crowd(int32_t num_prefixes, int32_t num_tokens, int32_t num_losses) {
  MetricsRegistry registry;
  World world("crowd", &registry, {});
  world.BeginEpoch();
  for (int32_t i = 0; i < num_prefixes; ++i) {
    world.Pin(num_tokens, 1000 + i);
  }
  while (world.num_pinned < num_prefixes) {
    QUIRE_CHECK(world.Step());
  }
  world.AddMany(kNumSequences, World::Prompt(20, 1, 100));
  world.Steps(14);
  world.Add(World::Prompt(kLongPrompt, 1, 50));
  world.AddMany(kNumWaiting - 1, World::Prompt(20, 1, 100), 10'000);
  Request resumed = World::Prompt(20, 1, 100);
  resumed.is_resumed = true;
  resumed.resumed.push_back({.token_ids = World::Tokens(20, 9)});
  world.AddMany(kNumWaiting, resumed, 20'000);
  for (int32_t i = 0; i < num_losses; ++i) {
    world.LookOn();
    world.Lose(/*by_crash=*/false);
    world.Steps(i + 1 < num_losses ? 2 : 170);
  }
  std::printf("crowd: %d running, %d waiting\n",
              world.stats().num_running_sequences,
              world.stats().num_waiting_requests);
  world.LookOn();
  world.AbortAll();
}

void FirstWaits() {
  MetricsRegistry registry;
  World world("first waits", &registry, {});
  world.BeginEpoch();
  world.Add(World::Prompt(kSharedPrompt, 1, 2000));
  world.Turn("a turn with a request");
  world.Steps(20);
  world.AddMany(690, World::Prompt(2000, 1, 2000));  // each holds 125 blocks and takes more
  world.Steps(190);
  world.Add(World::Resumed(1, /*priority=*/0));
  world.Steps(1);
  world.BeginToMeasure();
  world.Steps(20);
  std::printf("first waits: %d waiting\n", world.stats().num_waiting_requests);
}

void Swapped() {
  MetricsRegistry registry;
  World world("swapped",
              &registry,
              {.scheduling_policy = SchedulingPolicyKind::kPriority,
               .preemption_mode = PreemptionMode::kSwap});
  world.BeginEpoch();
  world.Add(World::Resumed(1, /*priority=*/100));
  world.Turn("the turn in which it comes");
  world.Steps(40);
  world.AddMany(790, World::Prompt(2000, 1, 2000));
  world.Steps(190);
  world.LookOn();
  world.Steps(10);
  std::printf("swapped: %d requests\n", world.stats().num_swapped_requests);
}

void Urgent() {
  MetricsRegistry registry;
  World world("urgent",
              &registry,
              {.scheduling_policy = SchedulingPolicyKind::kPriority,
               .preemption_mode = PreemptionMode::kSwap});
  world.BeginEpoch();
  world.AddMany(kNumSequences, World::Prompt(380, 1, 300));
  world.Steps(220);
  world.Add(World::Resumed(1, /*priority=*/-100));
  world.Turn("the turn that preempts");
  world.Turn("a turn with nothing to do: stats");
  std::printf("urgent: %d requests swapped\n", world.stats().num_swapped_requests);
  world.Steps(5);
}

void Short() {
  MetricsRegistry registry;
  World world("short", &registry, {.preemption_mode = PreemptionMode::kAuto});
  world.BeginEpoch();
  world.AddMany(kNumSequences, World::Prompt(300, 1, 400));
  world.Steps(400);
  std::printf("short: %ld preemptions\n", world.stats().num_preemptions);
}

void Suspects() {
  MetricsRegistry registry;
  World world("suspects", &registry, {});
  world.BeginEpoch();
  world.AddMany(kNumSequences, World::Prompt(1, 1, 100));
  for (int32_t i = 0; i < 2; ++i) {
    world.Lose(/*by_crash=*/true);
  }
  world.Steps(20);
  std::printf("suspects: %d\n", world.stats().num_suspects);
}

void LargestPlan() {
  Longest longest("largest");
  StepPlan plan;
  constexpr int32_t kNumTokens = 4000;
  for (int32_t i = 0; i < 32 * 1024 * 1024 / (4 * kNumTokens + 4 * kNumTokens / kBlockSize); ++i) {
    const auto handle = static_cast<SequenceHandle>(i);
    plan.introductions.push_back({.handle = handle,
                                  .token_ids = World::Tokens(kNumTokens, 1),
                                  .num_prompt_tokens = kNumTokens,
                                  .num_computed_tokens = kNumTokens - 1});
    plan.introductions.back().block_ids.assign(kNumTokens / kBlockSize, 99'999);
    plan.slices.push_back({.handle = handle, .num_tokens = 1});
  }
  v1::StepRequest request;
  for (int32_t i = 0; i < 3; ++i) {
    longest.Time("its digest", [&] { plan.digest = DigestOf(plan); });
    longest.Time("its message", [&] { EncodePlan(plan, &request); });
    longest.Time("the message's bytes", [&] { SerializeMessage(request); });
  }
  longest.Print();
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const auto number = [argc, argv](int index, int otherwise) {
    return argc > index ? std::atoi(argv[index]) : otherwise;
  };
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  quire::Crowd(number(1, 256), number(2, 4000), number(3, 3));
  quire::FirstWaits();
  quire::Swapped();
  quire::Urgent();
  quire::Short();
  quire::Suspects();
  quire::LargestPlan();
  return 0;
}
