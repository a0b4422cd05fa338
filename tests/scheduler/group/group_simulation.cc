#include "tests/scheduler/group/group_simulation.h"

#include <algorithm>
#include <variant>

#include "common/base/error.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

constexpr int32_t kVocabSize = 97;
constexpr size_t kMaxLiveRequests = 12;
constexpr Instant kCallTimeout = 10 * kNanosPerSecond;
constexpr Instant kTickInterval = 100 * kNanosPerMilli;
constexpr Instant kReportInterval = 250 * kNanosPerMilli;

GroupSettings Settings() {
  GroupSettings settings;
  settings.model = {.vocab_size = kVocabSize, .max_position_embeddings = 60};
  settings.block_size_tokens = 4;
  settings.wants_host_blocks = true;
  settings.max_sequences = 8;
  settings.max_tokens_per_step = 16;
  return settings;
}

CoreConfig DrawConfig(Random& random) {
  return {.watermark = 0.0,
          .preemption_mode = static_cast<PreemptionMode>(random.Below(3)),
          .prefix_caching = random.OneIn(2)};
}

}  // namespace

GroupSimulation::GroupSimulation(uint64_t seed)
    : random_(seed),
      settings_(Settings()),
      ranks_(static_cast<size_t>(1 + seed % 8)),
      core_(std::in_place, DrawConfig(random_)),
      // Not shorter: frequent kills would end innocent requests (crash_suspects.h).
      mean_fault_gap_(random_.Between(5, 60) * kNanosPerSecond),
      mean_request_gap_(random_.Between(1, 20) * 100 * kNanosPerMilli),
      step_duration_(random_.Between(4, 40) * 5 * kNanosPerMilli) {
  StartScheduler();
  for (Rank& rank : ranks_) {
    Start(rank, /*has_other_weights=*/false);
  }
  const auto tick = [this](auto& self) -> void {
    group_->Tick(now_);
    At(now_ + kTickInterval, [this, self] { self(self); });
  };
  tick(tick);
  const auto arrive = [this](auto& self) -> void {
    if (has_faults_) {
      AddRequest();
      At(now_ + random_.Between(1, 200) * mean_request_gap_ / 100, [this, self] { self(self); });
    }
  };
  At(0, [arrive] { arrive(arrive); });
  const auto fail = [this](auto& self) -> void {
    if (has_faults_) {
      DrawFault();
      At(now_ + random_.Between(1, 200) * mean_fault_gap_ / 100, [this, self] { self(self); });
    }
  };
  At(kNanosPerSecond, [fail] { fail(fail); });
}

std::string GroupSimulation::Run(Instant duration) {
  while (now_ < duration && failure_.empty()) {
    Turn();
  }
  return failure_;
}

std::string GroupSimulation::Drain() {
  has_faults_ = false;
  for (Rank& rank : ranks_) {
    rank.cut_until = 0;
    if (rank.process.is_alive && (rank.process.is_stopped || rank.process.has_other_weights)) {
      Kill(rank, kNanosPerSecond);
    }
    rank.process.hangs_next = false;
  }
  // Time for a hanging rank to be fenced and to end itself, and then for all requests to complete.
  const Instant end = now_ + 120 * kNanosPerSecond;
  while (now_ < end && failure_.empty() && (HasLiveRequest() || core_->has_unanswered_plan())) {
    Turn();
  }
  Expect(!HasLiveRequest(), "liveness: everything completes once the faults stop");
  totals_.elapsed = now_;
  return failure_;
}

GroupSimulation::Totals GroupSimulation::totals() const {
  Totals totals = totals_;
  totals.num_steps = core_->stats().num_steps;
  totals.num_tokens = core_->stats().num_tokens_committed;
  totals.num_failed_swap_ins = core_->stats().num_failed_swap_ins;
  return totals;
}

void GroupSimulation::At(Instant when, std::function<void()> event) {
  events_.emplace(std::pair(when, num_events_++), std::move(event));
}

std::function<void()> GroupSimulation::OfScheduler(std::function<void()> event) const {
  return [this, event = std::move(event), number = num_schedulers_] {
    if (number == num_schedulers_) {
      event();
    }
  };
}

void GroupSimulation::Turn() {
  auto first = events_.begin();
  now_ = std::max(now_, first->first.first);
  const std::function<void()> event = std::move(first->second);
  events_.erase(first);
  event();
  Pump();
  PlanStep();
  for (const std::string& fault : {core_.Fault(), group_.Fault()}) {
    Expect(fault.empty(), fault);
  }
}

void GroupSimulation::Pump() {
  for (std::vector<GroupAction> actions = group_->TakeActions(); !actions.empty();
       actions = group_->TakeActions()) {
    for (const GroupAction& action : actions) {
      std::visit([this](const auto& each) { Do(each); }, action);
    }
    for (const Rank& rank : ranks_) {
      Expect(!rank.is_to_be_sent, "a rank is sent its step over the next stream");
    }
  }
}

void GroupSimulation::PlanStep() {
  if (!has_epoch_ || !group_->is_ready() || core_->has_unanswered_plan() || !failure_.empty()) {
    return;
  }
  std::optional<StepPlan> plan = core_->PlanStep(now_);
  TakeEvents();
  if (!plan.has_value()) {
    Expect(!HasLiveRequest(), "while the group is ready, whoever lives computes");
    return;
  }
  core_.untimed().CheckInvariants();
  Trace(plan->digest);
  DrawFailedSwapIns(*plan);
  first_result_.reset();
  do_results_differ_ = false;
  plan_ = std::move(plan);
  for (Rank& rank : ranks_) {
    rank.has_answered = false;
  }
  group_->Plan(*plan_, now_);
  Pump();
}

void GroupSimulation::Do(const DialLink& dial) {
  Rank& rank = RankOf(dial.link);
  rank.link = dial.link;
  rank.is_link_open = true;
  std::erase_if(rank.connected, [&dial](const auto& entry) {
    return entry.first + 100 < dial.link.number;  // no message is that old
  });
  const uint64_t number = rank.process.number;
  At(now_ + Soon(), OfScheduler([this, link = dial.link, number] { Report(link, number); }));
}

// Messages that the worker has already sent still arrive.
void GroupSimulation::Do(const CloseLink& close) { RankOf(close.link).is_link_open = false; }

void GroupSimulation::ExpectOpen(LinkId link) {
  const Rank& rank = RankOf(link);
  Expect(rank.is_link_open && rank.link == link, "a link is open when something is wanted of it");
}

void GroupSimulation::Do(const GreetWorker& greet) {
  ExpectOpen(greet.link);
  const auto is_answered = std::make_shared<bool>(false);
  At(now_ + kCallTimeout, OfScheduler([this, greet, is_answered] {
       if (!*is_answered) {
         group_->OnHello(greet.link, absl::DeadlineExceededError("no answer"), now_);
       }
     }));
  ToWorker(greet.link, [this, greet, is_answered](Process& process) {
    absl::StatusOr<WorkerHello> hello = HelloOf(greet.link.rank);
    if (now_ < process.loaded_at) {
      hello = Error(absl::StatusCode::kUnavailable, "LOADING", "worker: is loading");
    }
    ToGroup(greet.link, [this, greet, hello, is_answered, number = process.number] {
      *is_answered = true;
      Rank& rank = RankOf(greet.link);
      if (hello.ok() && greet.link == rank.link) {
        rank.greeted_process = number;
      }
      group_->OnHello(greet.link, hello, now_);
    });
  });
}

void GroupSimulation::Do(const BeginWorkerEpoch& begin) {
  ExpectOpen(begin.link);
  Expect(begin.scheduler_incarnation >= kIncarnation, "an incarnation only grows");
  const auto is_answered = std::make_shared<bool>(false);
  At(now_ + kCallTimeout, OfScheduler([this, begin, is_answered] {
       if (!*is_answered) {
         group_->OnEpochBegun(begin.link, absl::DeadlineExceededError("no answer"), now_);
       }
     }));
  ToWorker(begin.link, [this, begin, is_answered](Process& process) {
    absl::Status status = process.claim.Ask(begin.scheduler_incarnation, begin.group_epoch, now_);
    if (status.ok()) {
      status = process.order.CheckEpoch(begin.scheduler_incarnation, begin.group_epoch);
    }
    if (process.is_hanging) {
      return;  // it ends itself later, see Hang
    }
    const bool is_refused = has_faults_ && random_.OneIn(30);
    Expect(begin.limits.num_blocks <= process.num_blocks,
           "an epoch has no more blocks than any of its ranks");
    if (status.ok() && is_refused) {
      status = Error(absl::StatusCode::kResourceExhausted, "MEMORY", "worker: not now");
    }
    if (status.ok()) {
      process.order.BeginEpoch(begin.scheduler_incarnation, begin.group_epoch);
      const auto rank = static_cast<uint64_t>(begin.link.rank);
      process.worker = std::make_unique<FakeWorker>(
          begin.limits, static_cast<int32_t>((rank + begin.group_epoch) % 3), rank * 0x9E3779B9);
      process.busy_until = 0;
      process.hangs_next = false;  // else ranks would mostly hang at the first step of an epoch
    }
    const Instant delay =
        has_faults_ && random_.OneIn(8) ? random_.Between(1, 40) * Soon() * 20 : 0;
    At(now_ + delay, OfScheduler([this, begin, status, is_answered] {
         ToGroup(begin.link, [this, begin, status, is_answered] {
           *is_answered = true;
           if (status.ok() && begin.link == RankOf(begin.link).link) {
             RankOf(begin.link).begun_link = begin.link;
           }
           group_->OnEpochBegun(begin.link, status, now_);
         });
       }));
  });
}

void GroupSimulation::Do(const BreakSteps& steps) {
  ExpectOpen(steps.link);
  Break(steps.link);
}

void GroupSimulation::Do(const OpenSteps& open) {
  ExpectOpen(open.link);
  Rank& rank = RankOf(open.link);
  rank.is_to_be_sent = plan_.has_value() && !rank.has_answered;
}

void GroupSimulation::Do(const SendPlan& send) {
  ExpectOpen(send.link);
  RankOf(send.link).is_to_be_sent = false;
  if (has_faults_ && random_.OneIn(200)) {
    return;  // lost on the way
  }
  ToWorker(send.link,
           [this, send, plan = *plan_](Process& process) { Execute(send.link, process, plan); });
}

void GroupSimulation::Do(const ReportReady& ready) {
  bool is_crash = std::exchange(failed_at_step_, false);
  for (Rank& rank : ranks_) {
    Expect(rank.begun_link == rank.link, "a group is ready when every rank has begun the epoch");
    is_crash = is_crash || (was_ready_ && rank.ready_process != rank.greeted_process);
    rank.ready_process = rank.greeted_process;
  }
  Expect(ready.after_crash == is_crash, "it is known whether the loss was a crash");
  totals_.num_crashes += is_crash ? 1 : 0;
  was_ready_ = true;
  Expect(!has_epoch_, "an epoch is over before the next is ready");
  ++totals_.num_epochs;
  has_epoch_ = true;
  limits_ = ready.agreement.limits;
  core_->BeginEpoch(ready.scheduler_incarnation, ready.group_epoch, limits_, ready.after_crash);
  TakeEvents();
}

void GroupSimulation::Do(const ReportResult& report) {
  Expect(plan_.has_value() && report.result.header == plan_->header,
         "the group reports the answer to its plan");
  Expect(!do_results_differ_, "ranks that differ are no result of the group");
  if (!failure_.empty()) {
    return;
  }
  const absl::Status status = core_->ApplyStepResult(report.result);
  Expect(status.ok(), "the answer of the group fits: " + status.ToString());
  plan_.reset();
  TakeEvents();
  core_.untimed().CheckInvariants();
}

void GroupSimulation::Do(const ReportStale& /*stale*/) {
  was_stale_ = true;
  ++totals_.num_stale;
}

void GroupSimulation::Do(const ReportLost& lost) {
  Expect(has_epoch_, "what was never ready is not lost");
  was_lost_ = true;
  ++totals_.num_losses;
  totals_.num_spoiled_found += ReasonOf(lost.status) == "RANKS_DIFFER" ? 1 : 0;
  const std::string reason = ReasonOf(lost.status);
  failed_at_step_ =
      reason == "STEP_TIMEOUT" || (reason == "PROTOCOL_VIOLATION" && absl::IsInternal(lost.status));
  has_epoch_ = false;
  plan_.reset();
  core_->OnWorkersLost();
  core_.untimed().CheckInvariants();
  TakeEvents();
}

// Real clients resume at the other scheduler; here the same core goes on.
void GroupSimulation::Do(const ReportStandby& standby) {
  Expect(!has_epoch_, "the epoch is lost before");
  if (standby.scheduler_incarnation == 0 || !was_ready_) {
    return;
  }
  Expect(std::ranges::any_of(
             ranks_,
             [this, &standby](const Rank& rank) {
               const Process& process = rank.process;
               return process.claim.scheduler_incarnation() == standby.scheduler_incarnation &&
                      now_ - process.other_leaves_at < GroupTiming().standby_ns + kReportInterval;
             }),
         "requests are given up for a scheduler that lives");
  ++totals_.num_takeovers;
  ForgetEpoch();
  if (random_.OneIn(2)) {
    At(now_ + random_.Between(1, 30) * 100 * kNanosPerMilli, [this] {
      if (!has_epoch_) {
        StartScheduler();
      }
    });
  }
}

// Kills ranks with other weights: the group no longer pins the weights and would accept any. Real
// clients would notice by the fingerprint; the simulation has none.
void GroupSimulation::ForgetEpoch() {
  for (Rank& rank : ranks_) {
    if (rank.process.has_other_weights) {
      Kill(rank, kNanosPerSecond);
    }
  }
  was_ready_ = false;
  failed_at_step_ = false;
}

void GroupSimulation::Do(const ReportRefused& /*refused*/) { ++totals_.num_refusals; }

void GroupSimulation::ToWorker(LinkId link, std::function<void(Process&)> message) {
  At(now_ + Soon(), OfScheduler([this, link, message = std::move(message)] {
       Rank& rank = RankOf(link);
       if (now_ < rank.cut_until) {
         return;
       }
       const uint64_t connected =
           rank.connected.emplace(link.number, rank.process.number).first->second;
       if (!rank.process.is_alive || connected != rank.process.number) {
         return Break(link);
       }
       const auto read = OfScheduler([this, link, message, number = rank.process.number] {
         Rank& reader = RankOf(link);
         if (reader.process.number == number && reader.process.is_alive) {
           message(reader.process);
         }
       });
       if (rank.process.is_stopped) {
         rank.process.unread.push_back(read);
       } else {
         read();
       }
     }));
}

void GroupSimulation::ToGroup(LinkId link, std::function<void()> message) {
  At(now_ + Soon(), OfScheduler([this, link, message = std::move(message)] {
       if (now_ >= RankOf(link).cut_until) {
         message();
       }
     }));
}

void GroupSimulation::Break(LinkId link) {
  ToGroup(link, [this, link] {
    const absl::Status status = absl::UnavailableError("the connection broke");
    group_->OnHello(link, status, now_);
    group_->OnStepsEnd(link, status, now_);
    group_->OnWatchEnd(link, status, now_);
  });
}

// Sends the reports of this link's Watch call to this process.
void GroupSimulation::Report(LinkId link, uint64_t process_number) {
  Rank& rank = RankOf(link);
  Process& process = rank.process;
  if (rank.link != link) {
    return;
  }
  if (process.number != process_number || !process.is_alive) {
    return Break(link);
  }
  if (!process.is_stopped) {
    WorkerReport report{.uuid = HelloOf(link.rank).uuid,
                        .phase = WorkerPhase::kIdle,
                        .progress = process.progress,
                        .scheduler_incarnation = process.order.scheduler_incarnation(),
                        .group_epoch = process.order.group_epoch(),
                        .step_id = process.step_id,
                        .holder_incarnation = rank.process.claim.scheduler_incarnation()};
    rank.process.claim.Hear(group_->scheduler_incarnation(), now_);
    if (now_ < process.other_leaves_at) {
      rank.process.claim.Hear(process.claim.scheduler_incarnation(), now_);
    }
    report.holder_silence_ns = process.claim.SilenceNs(now_);
    if (has_faults_ && random_.OneIn(2000)) {
      report.holder_incarnation = DrawNonsense();
    }
    if (now_ < process.loaded_at) {
      report.phase = WorkerPhase::kLoading;
    } else if (process.is_hanging) {
      report.phase = process.hanging_phase;
      report.waits_for_rank = process.hanging_waits_for;
    } else if (now_ < process.busy_until) {
      report.phase = WorkerPhase::kExecuting;
      report.progress += static_cast<uint64_t>(now_);
    }
    ToGroup(link, [this, link, report] { group_->OnReport(link, report, now_); });
  }
  At(now_ + kReportInterval,
     OfScheduler([this, link, process_number] { Report(link, process_number); }));
}

void GroupSimulation::Execute(LinkId link, Process& process, const StepPlan& plan) {
  if (process.is_hanging) {
    return;
  }
  absl::StatusOr<StepOrder::Verdict> verdict = process.order.Classify(plan.header, plan.digest);
  if (const absl::Status status =
          process.claim.Check(plan.header.scheduler_incarnation, plan.header.group_epoch);
      !status.ok()) {
    verdict = status;
  }
  if (!verdict.ok()) {
    ToGroup(link,
            [this, link, status = verdict.status()] { group_->OnStepsEnd(link, status, now_); });
    return;
  }
  if (*verdict == StepOrder::Verdict::kReplay) {
    return AnswerStep(link, process.order.last_result(), std::max(now_, process.busy_until) - now_);
  }
  process.step_id = plan.header.step_id;
  if (std::exchange(process.hangs_next, false)) {
    process.is_hanging = true;
    return Hang(RankOf(link));
  }
  const bool is_present = plan_.has_value() && plan.header == plan_->header;
  if (is_present) {
    for (const BlockSwapIn& swap : plan.swap_ins) {
      if (failed_swap_ins_.contains(swap.block)) {
        process.worker->FailSwapIn(swap.host_block);
      }
    }
  }
  absl::StatusOr<StepResult> result = process.worker->Execute(plan);
  if (!result.ok()) {
    return Expect(false, "the worker takes the plan: " + result.status().ToString());
  }
  if (link.rank != failing_rank_) {  // reports no failure, but computes wrongly too: ranks add up
    std::erase_if(result->failed_swap_ins,
                  [this](BlockId block_id) { return failed_swap_ins_.contains(block_id); });
  }
  if (process.has_other_weights) {
    for (SampledToken& sampled : result->sampled) {
      sampled.token_id = (sampled.token_id + 1) % kVocabSize;
    }
  }
  process.order.Complete(*result);
  if (is_present) {
    first_result_ = first_result_.value_or(*result);
    do_results_differ_ = do_results_differ_ || first_result_->sampled != result->sampled ||
                         first_result_->row_hash != result->row_hash;
  }
  ++process.progress;
  Instant duration = step_duration_ * random_.Between(50, 150) / 100;
  if (has_faults_ && random_.OneIn(500)) {
    duration += random_.Between(1, 10) * kNanosPerSecond;  // slow, but it makes progress
  }
  process.busy_until = now_ + duration;
  AnswerStep(link, *result, duration);
}

void GroupSimulation::AnswerStep(LinkId link, const StepResult& result, Instant delay) {
  const uint64_t number = RankOf(link).process.number;
  At(now_ + delay, OfScheduler([this, link, result, number] {
       Rank& rank = RankOf(link);
       if (rank.process.number != number || !rank.process.is_alive) {
         return;
       }
       const auto say = [this, link, result] {
         ToGroup(link, [this, link, result] {
           Rank& answering = RankOf(link);
           answering.last_answer = std::pair(link, result);
           answering.has_answered |=
               link == answering.link && plan_.has_value() && result.header == plan_->header;
           group_->OnAnswer(link, result, now_);
         });
       };
       if (rank.process.is_stopped) {
         rank.process.unread.emplace_back(say);
       } else if (!has_faults_ || !random_.OneIn(300)) {  // else it is lost
         say();
       }
     }));
}

void GroupSimulation::AddRequest() {
  if (outputs_.size() >= kMaxLiveRequests) {
    return;
  }
  Request request = MakeRequest({.id = next_id_,
                                 .prompt = random_.Between(1, 12),
                                 .max_tokens = random_.Between(1, 12),
                                 .num_sequences = random_.Between(1, 3)},
                                random_.OneIn(2) ? 3 : kVocabSize);
  request.sampling.seed = next_id_;
  if (core_->AddRequest(request) == AddOutcome::kQueued) {
    ++totals_.num_requests;
    outputs_[next_id_] = {.request = request,
                          .token_ids = std::vector(static_cast<size_t>(request.num_sequences),
                                                   request.prompt_token_ids)};
    ++next_id_;
  }
}

void GroupSimulation::TakeEvents() {
  for (const OutputEvent& event : core_->TakeEvents()) {
    if (const auto* token = std::get_if<TokenCommitted>(&event)) {
      Output& output = outputs_.at(token->request_id.value());
      std::vector<TokenId>& tokens = output.token_ids[static_cast<size_t>(token->sequence_index)];
      Expect(token->token_index ==
                 static_cast<int32_t>(tokens.size() - output.request.prompt_token_ids.size()),
             "no token is missing or doubled");
      Expect(token->token_id ==
                 ExpectedToken(
                     tokens, output.request.sampling.seed, token->sequence_index, kVocabSize),
             "the token follows from the true history");
      tokens.push_back(token->token_id);
      Trace(static_cast<uint64_t>(token->token_id));
      continue;
    }
    const auto& finished = std::get<SequenceFinished>(event);
    Output& output = outputs_.at(finished.request_id.value());
    Expect(finished.reason == FinishReason::kLength &&
               finished.num_output_tokens == output.request.max_tokens,
           "a request ends with all of its tokens: " +
               std::to_string(static_cast<int>(finished.reason)));
    if (++output.num_ended == output.request.num_sequences) {
      outputs_.erase(finished.request_id.value());
    }
  }
}

WorkerHello GroupSimulation::HelloOf(int32_t rank) const {
  const Process& process = ranks_[static_cast<size_t>(rank)].process;
  WorkerHello hello;
  hello.uuid = std::to_string(process.number);
  hello.config_hash = HashOf(settings_.model);
  hello.model_hash = process.has_other_weights ? 2 : 1;
  hello.num_blocks_max = process.num_blocks;
  hello.num_host_blocks_max = 10;
  hello.kv_cache_dtype = DType::kF32;
  hello.determinism_fingerprint = "fake";
  hello.vocab_size = kVocabSize;
  return hello;
}

void GroupSimulation::Trace(uint64_t word) {
  trace_hash_ = (trace_hash_ ^ word) * 0x9E3779B97F4A7C15ULL;
  trace_hash_ ^= trace_hash_ >> 31;
}

void GroupSimulation::Expect(bool condition, const std::string& what) {
  if (!condition && failure_.empty()) {
    failure_ = "at " + std::to_string(now_ / kNanosPerMilli) + " ms: not so: " + what;
  }
}

}  // namespace quire
