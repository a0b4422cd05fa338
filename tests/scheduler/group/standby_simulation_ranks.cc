// The worker processes of StandbySimulation.
#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "tests/scheduler/group/standby_simulation.h"

namespace quire {
namespace {

constexpr Instant kReportInterval = 250 * kNanosPerMilli;
constexpr Instant kMeetTimeout = 10 * kNanosPerSecond;

}  // namespace

StandbySimulation::Process& StandbySimulation::ProcessOf(const Connection& connection) {
  return ranks_[static_cast<size_t>(connection.link.rank)];
}

void StandbySimulation::StartProcess(int32_t rank, Instant load_time) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  process = Process();
  process.number = ++last_process_;
  process.is_alive = true;
  process.loaded_at = now_ + load_time;
  Say("rank " + std::to_string(rank) + " starts, loaded in ms " +
      std::to_string(load_time / kNanosPerMilli));
  const auto is_alive = [this, rank, number = process.number] {
    const Process& present = ranks_[static_cast<size_t>(rank)];
    return present.number == number && present.is_alive;
  };
  Every(kReportInterval, [this, rank, is_alive] {
    if (is_alive()) {
      Look(rank);
    }
    return is_alive();
  });
  At(process.loaded_at, [this, rank, is_alive] {
    if (is_alive()) {
      Look(rank);  // schedulers that were told LOADING wait for this report
    }
  });
}

void StandbySimulation::StartWatch(const ConnectionPtr& connection) {
  connection->is_watched = true;
  Hear(ProcessOf(*connection), connection->incarnation);
  SendReport(connection);
}

void StandbySimulation::Look(int32_t rank) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  if (process.is_stopped) {
    process.is_look_due = true;
    return;
  }
  std::vector<ConnectionPtr> watching;
  for (int32_t scheduler = 0; scheduler < setup_.num_schedulers; ++scheduler) {
    for (const ConnectionPtr& connection : PathOf(scheduler, rank).connections) {
      if (connection->is_watched && connection->process == process.number) {
        watching.push_back(connection);
        Hear(process, connection->incarnation);
      }
    }
  }
  for (const ConnectionPtr& connection : watching) {
    SendReport(connection);
  }
}

void StandbySimulation::Hear(Process& process, uint64_t incarnation) {
  process.claim.Hear(incarnation, now_);
  if (incarnation != process.newest_asked) {
    return;
  }
  if (now_ - process.heard_at > 2 * kReportInterval) {
    process.heard_since = now_;
  }
  process.heard_at = now_;
}

void StandbySimulation::SendReport(const ConnectionPtr& connection) {
  const Process& process = ProcessOf(*connection);
  WorkerReport report{
      .uuid = HelloOf(connection->link.rank).uuid,
      .phase = WorkerPhase::kIdle,
      .progress = process.progress,
      .scheduler_incarnation = process.order.scheduler_incarnation(),
      .group_epoch = process.order.group_epoch(),
      .step_id = process.order.last_done(),
      .holder_incarnation = process.claim.scheduler_incarnation(),
      .holder_silence_ns = process.claim.SilenceNs(now_) / kNanosPerMilli * kNanosPerMilli};
  if (now_ < process.loaded_at) {
    report.phase = WorkerPhase::kLoading;
  } else if (!process.tasks.empty()) {
    const bool is_step = process.tasks.front().plan.header.step_id > 0;
    report.phase = is_step ? WorkerPhase::kExecuting : WorkerPhase::kBeginningEpoch;
  }
  Send(connection, End::kScheduler, /*in_order=*/true, [this, connection, report] {
    Scheduler& scheduler = schedulers_[static_cast<size_t>(connection->scheduler)];
    if (!connection->is_closed && !connection->is_told) {
      scheduler.told[static_cast<size_t>(connection->link.rank)] =
          Told{report.holder_incarnation, report.holder_silence_ns};
    }
    scheduler.group->OnReport(connection->link, report, now_);
    Pump(scheduler);
  });
}

// Mirrors WorkerService::BeginEpoch.
void StandbySimulation::TakeAsk(const ConnectionPtr& connection,
                                uint64_t incarnation,
                                uint64_t epoch) {
  const int32_t rank = connection->link.rank;
  Process& process = ranks_[static_cast<size_t>(rank)];
  absl::Status status;
  if (now_ < process.loaded_at) {
    status = Error(absl::StatusCode::kUnavailable, "LOADING", "worker: is loading");
  } else {
    const bool is_newer = incarnation > process.newest_asked;
    if (is_newer) {
      ExpectIsNotHeard(schedulers_[static_cast<size_t>(connection->scheduler)], incarnation);
    }
    process.newest_asked = std::max(process.newest_asked, incarnation);
    process.claimed_at = is_newer ? now_ : process.claimed_at;
    process.heard_since = is_newer ? now_ : process.heard_since;
    process.heard_at = incarnation == process.newest_asked ? now_ : process.heard_at;
    status = process.claim.Ask(incarnation, epoch, now_);
  }
  Say("rank " + std::to_string(rank) + " is asked by " + std::to_string(incarnation) + ": " +
      status.ToString());
  if (!status.ok()) {
    return Send(connection, End::kScheduler, /*in_order=*/false, [this, connection, status] {
      Scheduler& scheduler = schedulers_[static_cast<size_t>(connection->scheduler)];
      scheduler.group->OnEpochBegun(connection->link, status, now_);
      Pump(scheduler);
    });
  }
  Look(rank);
  Abort(rank);
  StepPlan plan;
  plan.header = {.scheduler_incarnation = incarnation, .group_epoch = epoch, .step_id = 0};
  AddTask(rank, {connection, plan});
}

void StandbySimulation::AddTask(int32_t rank, Task task) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  process.tasks.push_back(std::move(task));
  if (process.tasks.size() == 1) {
    BeginTask(rank);
  }
}

void StandbySimulation::BeginTask(int32_t rank) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  ++process.task;
  ++process.progress;
  if (process.tasks.front().plan.header.step_id == 0) {
    BeginMeeting(rank);
  } else {
    BeginStep(rank);
  }
}

std::function<void()> StandbySimulation::OfTask(int32_t rank, std::function<void()> event) {
  const Process& process = ranks_[static_cast<size_t>(rank)];
  return [this, rank, event = std::move(event), number = process.number, task = process.task] {
    Process& present = ranks_[static_cast<size_t>(rank)];
    if (present.number != number || !present.is_alive || present.task != task) {
      return;
    }
    if (present.is_stopped) {
      present.unread.push_back(OfTask(rank, event));
    } else {
      event();
    }
  };
}

void StandbySimulation::BeginMeeting(int32_t rank) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  const StepHeader& header = process.tasks.front().plan.header;
  absl::Status status = process.claim.Check(header.scheduler_incarnation, header.group_epoch);
  if (status.ok()) {
    status = process.order.CheckEpoch(header.scheduler_incarnation, header.group_epoch);
  }
  if (!status.ok()) {
    return EndMeeting(rank, status);
  }
  const std::pair key(header.scheduler_incarnation, header.group_epoch);
  process.meets_for = key;
  At(now_ + kMeetTimeout, OfTask(rank, [this, rank] {
       EndMeeting(rank, Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", "nobody comes"));
     }));
  const bool have_all_come = std::ranges::all_of(
      ranks_, [&key](const Process& other) { return other.is_alive && other.meets_for == key; });
  if (have_all_come) {
    for (int32_t other = 0; other < setup_.num_ranks; ++other) {
      At(now_ + Soon(), OfTask(other, [this, other] { EndMeeting(other, absl::OkStatus()); }));
    }
  }
}

void StandbySimulation::EndMeeting(int32_t rank, const absl::Status& status) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  const Task task = process.tasks.front();
  const StepHeader& header = task.plan.header;
  if (status.ok()) {
    process.order.BeginEpoch(header.scheduler_incarnation, header.group_epoch);
  } else if (process.meets_for.has_value()) {
    process.order.LeaveEpoch();
  }
  process.meets_for.reset();
  Send(task.connection, End::kScheduler, /*in_order=*/false, [this, task, status] {
    Scheduler& scheduler = schedulers_[static_cast<size_t>(task.connection->scheduler)];
    scheduler.group->OnEpochBegun(task.connection->link, status, now_);
    Pump(scheduler);
  });
  EndTask(rank);
}

void StandbySimulation::BeginStep(int32_t rank) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  const StepPlan& plan = process.tasks.front().plan;
  const absl::Status status =
      process.claim.Check(plan.header.scheduler_incarnation, plan.header.group_epoch);
  const auto verdict = status.ok() ? process.order.Classify(plan.header, plan.digest)
                                   : absl::StatusOr<StepOrder::Verdict>(status);
  if (!verdict.ok() || *verdict == StepOrder::Verdict::kReplay) {
    return EndStep(rank, verdict.status());
  }
  Expect(plan.header.scheduler_incarnation >= process.newest_asked,
         "a rank executes no step of a scheduler after a newer one has asked");
  At(now_ + random_.Between(5, 200) * kNanosPerMilli,
     OfTask(rank, [this, rank] { EndStep(rank, absl::OkStatus()); }));
}

void StandbySimulation::EndStep(int32_t rank, const absl::Status& status) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  const Task task = process.tasks.front();
  if (status.ok() && process.order.last_done() != task.plan.header.step_id) {
    process.order.Complete({.header = task.plan.header,
                            .plan_digest = task.plan.digest,
                            .sampled = {{.handle = 1, .token_id = 5}}});
  }
  totals_.num_refused_steps += status.ok() ? 0 : 1;
  Send(task.connection,
       End::kScheduler,
       /*in_order=*/true,
       [this, task, status, result = process.order.last_result()] {
         Scheduler& scheduler = schedulers_[static_cast<size_t>(task.connection->scheduler)];
         if (status.ok()) {
           scheduler.group->OnAnswer(task.connection->link, result, now_);
         } else {
           scheduler.group->OnStepsEnd(task.connection->link, status, now_);
         }
         Pump(scheduler);
       });
  EndTask(rank);
}

void StandbySimulation::EndTask(int32_t rank) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  process.tasks.pop_front();
  ++process.task;
  ++process.progress;
  if (!process.tasks.empty()) {
    BeginTask(rank);
  }
}

// Ends the current task, which may wait for other ranks.
void StandbySimulation::Abort(int32_t rank) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  if (process.tasks.empty() || setup_.num_ranks == 1) {
    return;
  }
  const absl::Status status =
      Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", "connecting to it was aborted");
  if (process.tasks.front().plan.header.step_id == 0) {
    return EndMeeting(rank, status);
  }
  process.order.LeaveEpoch();
  EndStep(rank, status);
}

WorkerHello StandbySimulation::HelloOf(int32_t rank) const {
  WorkerHello hello;
  hello.uuid = std::to_string(ranks_[static_cast<size_t>(rank)].number);
  hello.config_hash = HashOf(settings_.model);
  hello.model_hash = 1;
  hello.num_blocks_max = 40;
  hello.kv_cache_dtype = DType::kF32;
  hello.determinism_fingerprint = "fake";
  hello.vocab_size = settings_.model.vocab_size;
  return hello;
}

}  // namespace quire
