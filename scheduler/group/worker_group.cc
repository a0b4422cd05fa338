#include "scheduler/group/worker_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "scheduler/group/worker_refusal.h"

namespace quire {
namespace {

// After up to this many failed epochs in a row, ranks are dialed again without a pause, so that a
// single loss delays streams little.
constexpr int32_t kNumImmediateEpochs = 2;

// Upper bound on the bytes of RankRefusal::uuid and ::why, because both can hold text of the
// worker.
constexpr size_t kMaxRefusalBytes = 512;

RankRefusal RefusalOf(const WorkerHello& hello, const absl::Status& status) {
  const std::string why = absl::StrCat(ReasonOf(status), " ", status.message());
  return {.uuid = hello.uuid.substr(0, kMaxRefusalBytes), .why = why.substr(0, kMaxRefusalBytes)};
}

}  // namespace

WorkerGroup::WorkerGroup(const GroupSettings& settings,
                         int32_t num_ranks,
                         uint64_t scheduler_incarnation,
                         const GroupTiming& timing)
    : settings_(settings),
      timing_(timing),
      succession_(num_ranks,
                  scheduler_incarnation,
                  {.stands_by = settings.stands_by, .patience_ns = timing.standby_ns}),
      ranks_(static_cast<size_t>(num_ranks)) {
  QUIRE_CHECK(num_ranks > 0);
  for (Rank& rank : ranks_) {
    rank.backoff_ns = timing_.min_backoff_ns;
  }
}

void WorkerGroup::Plan(const StepPlan& plan, Instant now) {
  if (!is_ready() || plan.header.group_epoch != group_epoch_) {
    return;  // the loop does not know yet that the plan's epoch is over
  }
  QUIRE_CHECK(!pending_.has_value());
  if (has_sampled_) {  // a new plan means that the loop has accepted an earlier step's token
    num_failed_epochs_ = 0;
  }
  pending_.emplace(plan, ranks_.size());
  for (Rank& rank : ranks_) {
    rank.detector.ForgetIdle();
    rank.detector.OnMoved(now);
    if (rank.has_stream) {
      actions_.push_back(SendPlan{LinkOf(rank)});
    }
  }
}

void WorkerGroup::RejectPlan(uint64_t group_epoch, const absl::Status& status, Instant now) {
  if (is_ready() && group_epoch == group_epoch_) {
    Lose(status, now);
  }
}

void WorkerGroup::Abandon(uint64_t group_epoch, Instant now) {
  if (is_ready() && group_epoch == group_epoch_) {
    has_failed_at_step_ = true;
    EndEpoch(now);
  }
}

void WorkerGroup::OnHello(LinkId link, absl::StatusOr<WorkerHello> hello, Instant now) {
  Rank* rank = Find(link);
  if (rank == nullptr || rank->state != RankState::kGreeting) {
    return;
  }
  if (ReasonOf(hello.status()) == "LOADING") {
    rank->state = RankState::kLoading;  // until the worker reports another phase
    return;
  }
  absl::Status status = hello.status();
  rank->hello = std::move(hello).value_or(WorkerHello());
  if (status.ok()) {
    status = CheckHello(rank->hello, link.rank, settings_, pinned_);
  }
  if (IsMismatch(status)) {
    Refuse(*rank, status, now);
    return;
  }
  if (!status.ok()) {
    DropRank(*rank, status, now);
    return;
  }
  rank->detector.OnHello(rank->hello.uuid);
  rank->state = RankState::kGreeted;
  AskIfAllAreThere(now);
}

void WorkerGroup::OnEpochBegun(LinkId link, const absl::Status& status, Instant now) {
  Rank* rank = Find(link);
  if (rank == nullptr || rank->state != RankState::kBeginning) {
    return;
  }
  if (status.ok()) {
    rank->state = RankState::kBegun;
    BecomeReadyIfAllBegan();
    return;
  }
  if (IsMismatch(status)) {
    Refuse(*rank, status, now);
    return;
  }
  // The cause may be a newer scheduler that holds the worker. Then the worker's reports will name
  // that scheduler.
  DropRank(*rank, status, now);
}

void WorkerGroup::OnAnswer(LinkId link, StepResult result, Instant now) {
  Rank* rank = Find(link);
  if (rank == nullptr || !pending_.has_value() || !pending_->IsAwaited(link.rank, result.header)) {
    actions_.push_back(ReportStale{link.rank});
    return;
  }
  if (const absl::Status status = pending_->Add(link.rank, std::move(result)); !status.ok()) {
    Lose(Blame(*rank, status), now);
    return;
  }
  rank->broken_at.reset();
  rank->detector.ForgetIdle();
  for (Rank& other : ranks_) {
    if (other.detector.report().waits_for_rank == link.rank) {
      other.detector.OnMoved(now);  // its time counts from now, because it had to wait until now
    }
  }
  AnswerIfComplete(now);
}

void WorkerGroup::OnStepsEnd(LinkId link, const absl::Status& status, Instant now) {
  Rank* rank = Find(link);
  if (rank == nullptr || !is_ready() || !rank->has_stream) {
    return;
  }
  if (!IsTransportError(status)) {
    Lose(Blame(*rank, status), now);
    return;
  }
  if (!rank->broken_at.has_value()) {
    rank->broken_at = now;
  }
  if (now - *rank->broken_at >= timing_.lease_ns) {
    Lose(Blame(*rank, CauseOfBreaks(status)), now);
    return;
  }
  // After mend_pause_ns, the step is sent again over a new link. A worker that already has the step
  // does not compute it twice.
  actions_.push_back(CloseLink{LinkOf(*rank)});
  rank->link_number = ++last_link_number_;
  rank->has_stream = false;
  rank->detector.ForgetIdle();  // idle reports count anew, because the plan is sent again
  rank->reopen_at = now + timing_.mend_pause_ns;
}

void WorkerGroup::OnReport(LinkId link, const WorkerReport& report, Instant now) {
  Rank* rank = Find(link);
  if (rank == nullptr) {
    return;
  }
  if (IsGreeted(*rank) && report.uuid != rank->hello.uuid) {
    DropRank(*rank,
             Error(absl::StatusCode::kUnavailable,
                   "WORKER_REPLACED",
                   "worker: another process answers on its address"),
             now);
    return;
  }
  const bool moved = rank->detector.OnReport(report, now);
  if (const absl::Status status = TakeHolder(*rank, now); !status.ok()) {
    return Refuse(*rank, status, now);
  }
  HandleSuccession(now);
  rank = Find(link);
  if (rank == nullptr) {
    return;  // HandleSuccession has closed every link
  }
  if (rank->state == RankState::kLoading) {
    if (report.phase != WorkerPhase::kLoading) {
      Greet(*rank);
    } else if (moved) {
      actions_.push_back(ReportLoading{link.rank, report.loaded_bytes, report.total_bytes});
    }
    return;
  }
  const bool is_idle = rank->detector.NoteIdle(IsAsked(*rank), now);
  if (!is_idle && rank->has_stream) {
    rank->broken_at.reset();
  }
  AskIfAllAreThere(now);
}

bool WorkerGroup::IsAsked(const Rank& rank) const {
  return rank.state == RankState::kGreeting || rank.state == RankState::kBeginning ||
         OwesAnswer(rank);
}

bool WorkerGroup::OwesAnswer(const Rank& rank) const {
  return pending_.has_value() && !pending_->HasAnswered(IndexOf(rank));
}

void WorkerGroup::OnWatchEnd(LinkId link, const absl::Status& status, Instant now) {
  Rank* rank = Find(link);
  if (rank == nullptr || rank->state == RankState::kAway) {
    return;
  }
  if (is_ready()) {
    OnStepsEnd(link, status, now);  // reports and steps share the connection, so both broke
  } else if (IsMismatch(status)) {
    Refuse(*rank, status, now);
  } else {
    DropRank(*rank, status, now);
  }
}

void WorkerGroup::Tick(Instant now) {
  if (now - last_tick_ >= kLateTickNs) {
    for (Rank& rank : ranks_) {
      rank.detector.RestartTimeouts(now);
      rank.broken_at.reset();
    }
  }
  last_tick_ = now;
  first_tick_ = first_tick_ == 0 ? now : first_tick_;
  for (Rank& rank : ranks_) {
    CheckRank(rank, now);
  }
  // Standing by ends if for standby_ns no report has named another scheduler that holds the
  // workers. A single report without a holder is not enough, because a new worker process names no
  // holder until the other scheduler has asked for that worker.
  if (waits_for_ != 0 && now - last_waited_at_ >= timing_.standby_ns &&
      std::ranges::any_of(ranks_, HasReported)) {
    StandBy(0);
  }
  if (IsCutOffFromAll(now)) {
    // Gives up the claim to the workers: meanwhile all workers may have been replaced, and an older
    // scheduler may hold the new ones.
    succession_.StepBack();
    StandBy(kUnknownScheduler);
  }
  if (succession_.has_asked() && IsCutOff(now)) {
    succession_.LetGo();
    Regather(now);
  }
  AskIfAllAreThere(now);
}

std::vector<GroupAction> WorkerGroup::TakeActions() { return std::exchange(actions_, {}); }

bool WorkerGroup::IsGreeted(const Rank& rank) {
  return rank.state == RankState::kGreeted || rank.state == RankState::kBeginning ||
         rank.state == RankState::kBegun;
}

KvMemory WorkerGroup::kv_memory_of(int32_t rank) const {
  const Rank& of = ranks_[static_cast<size_t>(rank)];
  if (!IsGreeted(of)) {
    return {};
  }
  KvMemory memory = of.hello.kv_memory;
  // The last report may come from the rank's previous process.
  const WorkerReport& report = of.detector.report();
  memory.num_places = report.uuid == of.hello.uuid ? report.num_window_places : 0;
  return memory;
}

RankPhase WorkerGroup::phase_of(int32_t rank) const {
  switch (ranks_[static_cast<size_t>(rank)].state) {
    case RankState::kAway:
    case RankState::kGreeting:
      return RankPhase::kAway;
    case RankState::kLoading:
      return RankPhase::kLoading;
    case RankState::kGreeted:
    case RankState::kBeginning:
      return RankPhase::kWaiting;
    case RankState::kBegun:
      return is_ready() ? RankPhase::kReady : RankPhase::kWaiting;
  }
  return RankPhase::kAway;
}

bool WorkerGroup::HasReported(const Rank& rank) {
  return rank.state != RankState::kAway && !rank.detector.report().uuid.empty();
}

WorkerGroup::Rank* WorkerGroup::Find(LinkId link) {
  Rank& rank = ranks_[static_cast<size_t>(link.rank)];
  return rank.link_number == link.number ? &rank : nullptr;
}

int32_t WorkerGroup::IndexOf(const Rank& rank) const {
  return static_cast<int32_t>(&rank - ranks_.data());
}

LinkId WorkerGroup::LinkOf(const Rank& rank) const { return {IndexOf(rank), rank.link_number}; }

void WorkerGroup::Dial(Rank& rank, Instant now) {
  rank.link_number = ++last_link_number_;
  rank.detector.OnDial(now);
  succession_.Forget(IndexOf(rank));
  actions_.push_back(DialLink{LinkOf(rank), scheduler_incarnation()});
  Greet(rank);
}

void WorkerGroup::Greet(Rank& rank) {
  rank.state = RankState::kGreeting;
  rank.detector.ForgetIdle();
  actions_.push_back(GreetWorker{LinkOf(rank), scheduler_incarnation(), rank.refusal});
}

void WorkerGroup::CloseAndPause(Rank& rank, Instant now) {
  actions_.push_back(CloseLink{LinkOf(rank)});
  rank.link_number = ++last_link_number_;
  succession_.Forget(IndexOf(rank));
  rank.state = RankState::kAway;
  rank.has_stream = false;
  rank.dial_at = now + rank.backoff_ns;
  rank.backoff_ns = std::min(2 * rank.backoff_ns, timing_.max_backoff_ns);
}

void WorkerGroup::DropRank(Rank& rank, const absl::Status& status, Instant now) {
  if (is_ready()) {
    Lose(Blame(rank, status), now);
    return;
  }
  if (phase_ == Phase::kBeginning) {
    Regather(now);
  }
  const bool has_had_time = pinned_.has_value() || now - first_tick_ >= timing_.arrival_ns;
  if (has_had_time) {
    actions_.push_back(ReportAway{IndexOf(rank), Blame(rank, status)});
  }
  CloseAndPause(rank, now);
}

void WorkerGroup::Refuse(Rank& rank, const absl::Status& status, Instant now) {
  const absl::Status blamed = Blame(rank, status);
  if (is_ready()) {
    Lose(blamed, now);
    return;
  }
  if (phase_ == Phase::kBeginning) {
    Regather(now);
  }
  rank.refusal = RefusalOf(rank.hello, blamed);
  actions_.push_back(ReportRefused{IndexOf(rank), blamed});
  CloseAndPause(rank, now);
}

absl::Status WorkerGroup::TakeHolder(const Rank& rank, Instant now) {
  const WorkerReport& report = rank.detector.report();
  if (!succession_.IsPossible(report.holder_incarnation)) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "PROTOCOL_VIOLATION",
                 "scheduler_incarnation: the worker's holder is more than a year ahead of this "
                 "clock; restart the worker, or set the clock");
  }
  succession_.OnReport(IndexOf(rank), report.holder_incarnation, report.holder_silence_ns, now);
  return absl::OkStatus();
}

void WorkerGroup::HandleSuccession(Instant now) {
  if (succession_.IsOvertaken()) {
    succession_.StepBack();
    if (is_ready()) {
      Lose(Error(absl::StatusCode::kFailedPrecondition,
                 "STALE_SCHEDULER",
                 "scheduler: a newer scheduler has taken over the workers"),
           now);
      return;  // the next report will tell whether the newer scheduler lives
    }
    if (phase_ == Phase::kBeginning) {
      Regather(now);
      return;
    }
  }
  const std::optional<uint64_t> other = succession_.WaitsFor();
  if (phase_ != Phase::kGathering || !other.has_value()) {
    return;
  }
  last_waited_at_ = now;
  // This scheduler keeps the requests of its last epoch until the other scheduler is known to live.
  const bool may_go_on = pinned_.has_value() && !succession_.DoesOtherLive();
  if (*other != waits_for_ && !may_go_on) {
    StandBy(*other);
  }
}

void WorkerGroup::StandBy(uint64_t other_incarnation) {
  waits_for_ = other_incarnation;
  last_waited_at_ = last_tick_;
  if (other_incarnation != 0) {
    pinned_.reset();
    has_failed_at_step_ = false;
  }
  actions_.push_back(ReportStandby{other_incarnation});
}

void WorkerGroup::AskIfAllAreThere(Instant now) {
  std::vector<WorkerHello> hellos;
  hellos.reserve(ranks_.size());
  for (const Rank& rank : ranks_) {
    if (rank.state != RankState::kGreeted || rank.detector.report().uuid != rank.hello.uuid) {
      return;
    }
    hellos.push_back(rank.hello);
  }
  absl::StatusOr<Agreement> agreement = Agree(hellos, settings_, pinned_);
  if (!agreement.ok()) {
    // The ranks disagree, and any worker may be the wrong one. So all ranks are dialed again.
    for (Rank& rank : ranks_) {
      rank.refusal = RefusalOf(rank.hello, agreement.status());
      CloseAndPause(rank, now);
    }
    actions_.push_back(ReportRefused{0, agreement.status()});
    return;
  }
  for (Rank& rank : ranks_) {
    rank.refusal = {};
  }
  switch (succession_.Decide(now)) {
    case Succession::Verdict::kAsk:
      return BeginEpoch(*std::move(agreement));
    case Succession::Verdict::kRename:
      return Regather(now);
    case Succession::Verdict::kWait:
      return;
  }
}

void WorkerGroup::BeginEpoch(Agreement agreement) {
  if (waits_for_ != 0) {
    StandBy(0);
  }
  agreement_ = std::move(agreement);
  phase_ = Phase::kBeginning;
  ++group_epoch_;
  std::vector<std::string> rendezvous;
  rendezvous.reserve(ranks_.size());
  for (const Rank& rank : ranks_) {
    rendezvous.push_back(rank.hello.rendezvous);
  }
  for (Rank& rank : ranks_) {
    rank.state = RankState::kBeginning;
    rank.detector.ForgetIdle();
    actions_.push_back(BeginWorkerEpoch{.link = LinkOf(rank),
                                        .scheduler_incarnation = scheduler_incarnation(),
                                        .group_epoch = group_epoch_,
                                        .limits = agreement_->limits,
                                        .kv_cache_dtype = agreement_->numerics.kv_cache_dtype,
                                        .rope_length = agreement_->numerics.rope_length,
                                        .rendezvous = rendezvous});
  }
}

void WorkerGroup::BecomeReadyIfAllBegan() {
  for (const Rank& rank : ranks_) {
    if (rank.state != RankState::kBegun) {
      return;
    }
  }
  phase_ = Phase::kReady;
  has_sampled_ = false;
  const bool after_crash = WasCrash();
  pinned_ = agreement_->numerics;
  for (Rank& rank : ranks_) {
    rank.backoff_ns = timing_.min_backoff_ns;
    rank.broken_at.reset();
    OpenStream(rank);
  }
  actions_.push_back(ReportReady{.scheduler_incarnation = scheduler_incarnation(),
                                 .group_epoch = group_epoch_,
                                 .agreement = *agreement_,
                                 .after_crash = after_crash});
}

void WorkerGroup::OpenStream(Rank& rank) {
  rank.has_stream = true;
  rank.detector.ForgetIdle();
  actions_.push_back(OpenSteps{LinkOf(rank)});
  if (OwesAnswer(rank)) {
    actions_.push_back(SendPlan{LinkOf(rank)});
  }
}

void WorkerGroup::Regather(Instant now) {
  phase_ = Phase::kGathering;
  pending_.reset();
  for (Rank& rank : ranks_) {
    if (rank.state != RankState::kAway) {
      actions_.push_back(CloseLink{LinkOf(rank)});
      rank.has_stream = false;
      Dial(rank, now);
    }
  }
}

void WorkerGroup::Lose(const absl::Status& status, Instant now) {
  has_failed_at_step_ = IsFailureAtStep(status);
  actions_.push_back(ReportLost{group_epoch_, status});
  EndEpoch(now);
}

void WorkerGroup::EndEpoch(Instant now) {
  if (++num_failed_epochs_ <= kNumImmediateEpochs) {
    Regather(now);
    return;
  }
  phase_ = Phase::kGathering;
  pending_.reset();
  for (Rank& rank : ranks_) {
    if (rank.state != RankState::kAway) {
      // The pause grows with the number of failed epochs in a row, not with the number of dials.
      rank.backoff_ns = std::min(timing_.min_backoff_ns << std::min(num_failed_epochs_, 16),
                                 timing_.max_backoff_ns);
      CloseAndPause(rank, now);
    }
  }
}

size_t WorkerGroup::NumSilent(int64_t duration_ns, Instant now) const {
  return static_cast<size_t>(std::ranges::count_if(ranks_, [=, this](const Rank& rank) {
    return now - std::max(rank.detector.seen_at(), first_tick_) >= duration_ns;
  }));
}

bool WorkerGroup::IsCutOff(Instant now) const {
  const size_t num_silent = NumSilent(timing_.standby_ns, now);
  return !is_ready() && num_silent > 0 && num_silent < ranks_.size();
}

bool WorkerGroup::IsCutOffFromAll(Instant now) const {
  return timing_.cut_off_ns > 0 && pinned_.has_value() && !is_ready() &&
         NumSilent(timing_.cut_off_ns, now) == ranks_.size();
}

bool WorkerGroup::WasCrash() {
  bool was_crash = std::exchange(has_failed_at_step_, false);
  for (Rank& rank : ranks_) {
    was_crash = was_crash || (pinned_.has_value() && rank.ready_uuid != rank.hello.uuid);
    rank.ready_uuid = rank.hello.uuid;
  }
  return was_crash;
}

void WorkerGroup::CheckRank(Rank& rank, Instant now) {
  if (rank.state == RankState::kAway) {
    if (now >= rank.dial_at) {
      Dial(rank, now);
    }
    return;
  }
  if (rank.detector.IsSilent(timing_.silence_ns, now)) {
    DropRank(rank,
             Error(absl::StatusCode::kUnavailable,
                   "WORKER_SILENT",
                   "worker: sends no reports; its process is stopped, or the network is cut"),
             now);
    return;
  }
  if (!is_ready()) {
    CheckCall(rank, now);
    return;
  }
  if (!rank.has_stream && now >= rank.reopen_at) {
    actions_.push_back(DialLink{LinkOf(rank), scheduler_incarnation()});
    OpenStream(rank);
  }
  CheckStep(rank, now);
}

// Drops a rank that reports idle for call_ns although it owes an answer to a call: the call or the
// answer was lost.
void WorkerGroup::CheckCall(Rank& rank, Instant now) {
  if (IsAsked(rank) && rank.detector.IsIdle(timing_.call_ns, now)) {
    DropRank(rank,
             Error(absl::StatusCode::kUnavailable,
                   "CALL_LOST",
                   "worker: is idle, but has not answered a call"),
             now);
  }
}

void WorkerGroup::CheckStep(Rank& rank, Instant now) {
  if (!OwesAnswer(rank)) {
    return;
  }
  if (rank.detector.IsIdle(timing_.lease_ns, now)) {
    // The plan or its answer was lost, although the connection looks intact.
    rank.detector.ForgetIdle();
    actions_.push_back(BreakSteps{LinkOf(rank)});
    return;
  }
  if (rank.detector.StandsStill(timing_.step_timeout_ns) &&
      !WaitsForAnother(WaitsInStep(), IndexOf(rank))) {
    rank.detector.OnFenced(rank.hello.uuid);
    Lose(Blame(rank,
               Error(absl::StatusCode::kDeadlineExceeded,
                     "STEP_TIMEOUT",
                     absl::StrCat("worker: makes no progress in step ", pending_->step_id()))),
         now);
  }
}

std::vector<std::optional<int32_t>> WorkerGroup::WaitsInStep() const {
  std::vector<std::optional<int32_t>> waits_for;
  waits_for.reserve(ranks_.size());
  for (const Rank& rank : ranks_) {
    const std::optional<int32_t> other = rank.detector.report().waits_for_rank;
    const bool is_rank =
        other.has_value() && *other >= 0 && static_cast<size_t>(*other) < ranks_.size();
    waits_for.push_back(is_rank && !pending_->HasAnswered(*other) ? other : std::nullopt);
  }
  return waits_for;
}

void WorkerGroup::AnswerIfComplete(Instant now) {
  if (!pending_->is_complete()) {
    return;
  }
  absl::StatusOr<StepResult> merged = pending_->Merge();
  pending_.reset();
  if (merged.ok()) {
    has_sampled_ = has_sampled_ || !merged->sampled.empty();
    actions_.push_back(ReportResult{*std::move(merged)});
  } else {
    Lose(merged.status(), now);
  }
}

absl::Status WorkerGroup::Blame(const Rank& rank, const absl::Status& status) const {
  if (ranks_.size() == 1) {
    return status;
  }
  absl::Status blamed(status.code(), absl::StrCat("rank ", IndexOf(rank), ": ", status.message()));
  status.ForEachPayload([&blamed](absl::string_view url, const absl::Cord& payload) {
    blamed.SetPayload(url, payload);
  });
  return blamed;
}

}  // namespace quire
