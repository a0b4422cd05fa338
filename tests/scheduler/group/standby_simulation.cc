#include "tests/scheduler/group/standby_simulation.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/error.h"

namespace quire {
namespace {

constexpr Instant kTickInterval = 25 * kNanosPerMilli;
constexpr Instant kAuditInterval = 50 * kNanosPerMilli;
constexpr Instant kConnectTimeout = kNanosPerSecond;
constexpr int64_t kCutOff = 5 * kNanosPerSecond;
// Wall-clock time at time 0 of the steady clock.
constexpr int64_t kWallClock = 1'700'000'000 * kNanosPerSecond;

GroupTiming Timing() {
  GroupTiming timing;
  timing.cut_off_ns = kCutOff;
  return timing;
}

GroupSettings Settings() {
  GroupSettings settings;
  settings.model = {.vocab_size = 97, .max_position_embeddings = 60};
  settings.block_size_tokens = 4;
  settings.max_sequences = 8;
  settings.max_tokens_per_step = 16;
  return settings;
}

}  // namespace

StandbySimulation::Setup StandbySimulation::DrawSetup(uint64_t seed) {
  Random random(seed + 1'000'000'007);
  constexpr int32_t kNumsOfRanks[] = {1, 1, 2, 2, 4, 8};
  return {.num_schedulers = random.Between(2, 4),
          .num_ranks = kNumsOfRanks[random.Below(6)],
          .start_spread = (random.OneIn(2) ? 10 : 5000) * kNanosPerMilli};
}

StandbySimulation::StandbySimulation(const Setup& setup, uint64_t seed)
    : setup_(setup),
      random_(seed),
      settings_(Settings()),
      timing_(Timing()),
      mean_fault_gap_(random_.Between(2, 30) * kNanosPerSecond),
      // A scheduler that idles for long does not learn of a newer one from a refused step.
      step_gap_(random_.OneIn(2) ? 0 : random_.Between(1, 10) * kNanosPerSecond),
      now_(kBegan),
      has_faults_(setup.has_faults),
      schedulers_(static_cast<size_t>(setup.num_schedulers)),
      ranks_(static_cast<size_t>(setup.num_ranks)),
      paths_(schedulers_.size() * ranks_.size()),
      num_starts_until_clock_goes_back_(setup.has_faults ? random_.Between(1, 8) : -1) {
  for (int32_t rank = 0; rank < setup.num_ranks; ++rank) {
    StartProcess(rank, 0);
  }
  for (int32_t index = 0; index < setup.num_schedulers; ++index) {
    clock_leads_.push_back(random_.Between(-50'000, 50'000) * kNanosPerMicro);
    schedulers_[static_cast<size_t>(index)].index = index;
    const auto spread_us = static_cast<int32_t>(setup.start_spread / kNanosPerMicro);
    At(now_ + random_.Between(0, spread_us) * kNanosPerMicro,
       [this, index] { StartScheduler(index, /*stands_by=*/true); });
  }
  Every(kAuditInterval, [this] {
    Audit();
    return true;
  });
  if (setup.has_faults) {
    DrawFaults();
  }
}

std::string StandbySimulation::Run(Instant until) {
  while (now_ - kBegan < until && failure_.empty()) {
    auto first = events_.begin();
    now_ = first->first.first;
    const std::function<void()> event = std::move(first->second);
    events_.erase(first);
    event();
  }
  totals_.elapsed = now_ - kBegan;
  return failure_;
}

void StandbySimulation::At(Instant when, std::function<void()> event) {
  events_.emplace(std::pair(std::max(when, now_), num_events_++), std::move(event));
}

void StandbySimulation::Every(Instant interval, std::function<bool()> event) {
  At(now_ + interval, [this, interval, event = std::move(event)] {
    if (event()) {
      Every(interval, event);
    }
  });
}

void StandbySimulation::StartScheduler(int32_t index, bool stands_by) {
  Scheduler& scheduler = schedulers_[static_cast<size_t>(index)];
  scheduler = Scheduler();
  scheduler.index = index;
  scheduler.start = ++last_start_;
  scheduler.is_alive = true;
  scheduler.stands_by = stands_by;
  scheduler.connections.resize(ranks_.size());
  scheduler.told.resize(ranks_.size());
  scheduler.hit_at = now_;
  scheduler.continued_at = now_;
  scheduler_fault_at_ = now_;
  ++totals_.num_starts;
  if (--num_starts_until_clock_goes_back_ == 0) {
    clock_leads_[static_cast<size_t>(index)] -= int64_t{3600} * kNanosPerSecond;
  }
  const int64_t clock =
      kWallClock + now_ + clock_leads_[static_cast<size_t>(index)] + random_.Below(kNanosPerMicro);
  GroupSettings settings = settings_;
  settings.stands_by = stands_by;
  scheduler.group = std::make_unique<WorkerGroup>(
      settings, setup_.num_ranks, static_cast<uint64_t>(clock), timing_);
  scheduler.numbers.insert(static_cast<uint64_t>(clock));
  Say(NameOf(scheduler) + " starts as " + std::to_string(clock) +
      (stands_by ? "" : ", and does not stand by"));
  RefreshAll();
  if (!stands_by) {
    disturbed_at_ = now_;
  }
  Every(kTickInterval, [this, &scheduler, start = scheduler.start] {
    if (scheduler.start != start || !scheduler.is_alive) {
      return false;
    }
    if (!scheduler.is_stopped) {
      scheduler.group->Tick(now_);
      Pump(scheduler);
    }
    return true;
  });
}

std::function<void()> StandbySimulation::OfScheduler(const Scheduler& scheduler,
                                                     std::function<void()> event) {
  return [this, event = std::move(event), index = scheduler.index, start = scheduler.start] {
    Scheduler& present = schedulers_[static_cast<size_t>(index)];
    if (present.start != start || !present.is_alive) {
      return;
    }
    if (present.is_stopped) {
      present.unread.push_back(event);
    } else {
      event();
    }
  };
}

void StandbySimulation::Pump(Scheduler& scheduler) {
  for (std::vector<GroupAction> actions = scheduler.group->TakeActions(); !actions.empty();
       actions = scheduler.group->TakeActions()) {
    for (const GroupAction& action : actions) {
      std::visit([this, &scheduler](const auto& each) { Do(scheduler, each); }, action);
    }
  }
  PlanStep(scheduler);
}

void StandbySimulation::PlanStep(Scheduler& scheduler) {
  if (!scheduler.is_ready || scheduler.plan.has_value() || now_ < scheduler.plans_at ||
      scheduler.is_stopped) {
    return;
  }
  StepPlan plan;
  plan.header = {.scheduler_incarnation = scheduler.group->scheduler_incarnation(),
                 .group_epoch = scheduler.group_epoch,
                 .step_id = ++scheduler.last_step};
  plan.slices.push_back({.handle = 1, .num_tokens = 1});
  plan.digest = scheduler.last_step;
  scheduler.plan = plan;
  scheduler.sent_at = now_;
  scheduler.group->Plan(plan, now_);
  Pump(scheduler);
}

StandbySimulation::ConnectionPtr StandbySimulation::ConnectionOf(const Scheduler& scheduler,
                                                                 LinkId link) const {
  const ConnectionPtr& connection = scheduler.connections[static_cast<size_t>(link.rank)];
  return connection != nullptr && connection->link == link ? connection : nullptr;
}

void StandbySimulation::Do(Scheduler& scheduler, const DialLink& dial) {
  Close(scheduler, dial.link.rank);
  const auto connection = std::make_shared<Connection>();
  connection->scheduler = scheduler.index;
  connection->start = scheduler.start;
  connection->link = dial.link;
  connection->incarnation = dial.scheduler_incarnation;
  scheduler.numbers.insert(dial.scheduler_incarnation);
  scheduler.connections[static_cast<size_t>(dial.link.rank)] = connection;
  PathOf(*connection).connections.push_back(connection);
  Refresh(scheduler.index, dial.link.rank);
  Send(connection, End::kWorker, /*in_order=*/true, [this, connection] { StartWatch(connection); });
  At(now_ + kConnectTimeout, [this, connection] {
    if (!connection->is_established && !connection->is_dead) {
      connection->is_dead = true;
      connection->held.clear();
      Scheduler& dialler = schedulers_[static_cast<size_t>(connection->scheduler)];
      if (dialler.is_stopped) {
        dialler.unread.emplace_back([this, connection] { NoticeAtScheduler(connection); });
      } else {
        NoticeAtScheduler(connection);
      }
    }
  });
}

void StandbySimulation::Do(Scheduler& scheduler, const CloseLink& close) {
  Close(scheduler, close.link.rank);
}

void StandbySimulation::Close(Scheduler& scheduler, int32_t rank) {
  const ConnectionPtr connection =
      std::exchange(scheduler.connections[static_cast<size_t>(rank)], nullptr);
  scheduler.told[static_cast<size_t>(rank)].reset();
  if (connection == nullptr) {
    return;
  }
  connection->is_closed = true;
  connection->is_told = true;
  if (!connection->is_dead) {
    connection->held.clear();
    Send(connection, End::kWorker, /*in_order=*/true, [this, connection] {
      NoticeAtWorker(connection);
      connection->is_dead = true;
    });
  }
}

void StandbySimulation::Do(Scheduler& scheduler, const GreetWorker& greet) {
  const ConnectionPtr connection = ConnectionOf(scheduler, greet.link);
  Expect(connection != nullptr, "a worker is greeted over a link that is open");
  if (connection == nullptr) {
    return;
  }
  Send(connection, End::kWorker, /*in_order=*/false, [this, connection] {
    absl::StatusOr<WorkerHello> hello = HelloOf(connection->link.rank);
    if (now_ < ProcessOf(*connection).loaded_at) {
      hello = Error(absl::StatusCode::kUnavailable, "LOADING", "worker: is loading");
    }
    Send(connection, End::kScheduler, /*in_order=*/false, [this, connection, hello] {
      Scheduler& greeter = schedulers_[static_cast<size_t>(connection->scheduler)];
      greeter.group->OnHello(connection->link, hello, now_);
      Pump(greeter);
    });
  });
}

void StandbySimulation::Do(Scheduler& scheduler, const BeginWorkerEpoch& begin) {
  const ConnectionPtr connection = ConnectionOf(scheduler, begin.link);
  Expect(connection != nullptr, "a worker is asked over a link that is open");
  if (connection == nullptr) {
    return;
  }
  if (begin.link.rank == 0) {
    Say(NameOf(scheduler) + " asks as " + std::to_string(begin.scheduler_incarnation) + ", epoch " +
        std::to_string(begin.group_epoch));
    ExpectMayAsk(scheduler);
  }
  Send(connection,
       End::kWorker,
       /*in_order=*/false,
       [this, connection, incarnation = begin.scheduler_incarnation, epoch = begin.group_epoch] {
         TakeAsk(connection, incarnation, epoch);
       });
  Aim();
}

void StandbySimulation::Do(Scheduler& scheduler, const BreakSteps& steps) {
  At(now_ + Soon(), OfScheduler(scheduler, [this, &scheduler, link = steps.link] {
       scheduler.group->OnStepsEnd(link, absl::CancelledError("broken"), now_);
       Pump(scheduler);
     }));
}

void StandbySimulation::Do(Scheduler& scheduler, const SendPlan& send) {
  const ConnectionPtr connection = ConnectionOf(scheduler, send.link);
  Expect(connection != nullptr && scheduler.plan.has_value(), "a plan is sent over an open link");
  if (connection == nullptr || !scheduler.plan.has_value()) {
    return;
  }
  Send(connection, End::kWorker, /*in_order=*/true, [this, connection, plan = *scheduler.plan] {
    AddTask(connection->link.rank, {connection, plan});
  });
}

void StandbySimulation::Do(Scheduler& scheduler, const ReportReady& ready) {
  Say(NameOf(scheduler) + " is ready as " + std::to_string(ready.scheduler_incarnation));
  ExpectMayBeReady(scheduler);
  scheduler.is_ready = true;
  scheduler.has_requests = true;
  scheduler.stands_by = true;  // from now on
  scheduler.ready_at = now_;
  scheduler.first_rank_fault_at.reset();
  scheduler.group_epoch = ready.group_epoch;
  scheduler.last_step = 0;
  scheduler.plan.reset();
  ++totals_.num_ready;
  NoteReady(scheduler);
  Trace(ready.scheduler_incarnation);
  Aim();
}

void StandbySimulation::Do(Scheduler& scheduler, const ReportResult& report) {
  Expect(scheduler.is_ready && scheduler.plan.has_value() &&
             report.result.header == scheduler.plan->header,
         "the answer is to the plan");
  Expect(last_ready_start_ == scheduler.start || scheduler.sent_at <= last_ready_at_,
         NameOf(scheduler) + " commits no step that it sent after another one was ready");
  scheduler.plan.reset();
  scheduler.plans_at = now_ + step_gap_;
  ++totals_.num_commits;
  Trace(static_cast<uint64_t>(now_));
  if (step_gap_ > 0) {
    At(scheduler.plans_at, OfScheduler(scheduler, [this, &scheduler] { PlanStep(scheduler); }));
  }
}

void StandbySimulation::Do(Scheduler& scheduler, const ReportLost& lost) {
  Say(NameOf(scheduler) + " has lost: " + lost.status.ToString());
  Expect(scheduler.is_ready, "what was never ready is not lost");
  scheduler.is_ready = false;
  scheduler.plan.reset();
  NoteLost(scheduler);
  Trace(static_cast<uint64_t>(now_));
  Aim();
}

void StandbySimulation::Do(Scheduler& scheduler, const ReportStandby& standby) {
  Say(NameOf(scheduler) + " stands by for " + std::to_string(standby.scheduler_incarnation));
  Expect(!scheduler.is_ready, "who is ready does not stand by");
  scheduler.standby_for = standby.scheduler_incarnation;
  if (standby.scheduler_incarnation != 0) {
    ++totals_.num_standbys;
    totals_.num_superseded += std::exchange(scheduler.has_requests, false) ? 1 : 0;
  } else {
    ExpectHolderIsSilent(scheduler);
  }
  Aim();
}

void StandbySimulation::Do(Scheduler& scheduler, const ReportRefused& refused) {
  Expect(false, NameOf(scheduler) + " refuses a worker: " + refused.status.ToString());
}

void StandbySimulation::Trace(uint64_t word) {
  trace_hash_ = (trace_hash_ ^ word) * 0x9E3779B97F4A7C15ULL;
  trace_hash_ ^= trace_hash_ >> 31;
}

}  // namespace quire
