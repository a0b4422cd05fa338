// The faults of StandbySimulation.
#include <algorithm>
#include <utility>

#include "tests/scheduler/group/standby_simulation.h"

namespace quire {
namespace {

// Longer than any time from the last fault to the last change.
constexpr Instant kSettled = 80 * kNanosPerSecond;

}  // namespace

std::string StandbySimulation::Drain() {
  has_faults_ = false;
  for (Scheduler& scheduler : schedulers_) {
    ContinueScheduler(scheduler);
    for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
      Mend(scheduler.index, rank);
    }
  }
  for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
    ContinueProcess(rank);
  }
  Run(now_ - kBegan + kSettled);
  Expect(IsSettled(), "one is ready in the end, and the others stand by");
  return failure_;
}

// Most faults last about as long as the timeouts that they test; some last much longer.
Instant StandbySimulation::DrawDuration() {
  constexpr int32_t kMostTenths[] = {40, 40, 40, 40, 40, 200, 200, 600};
  const int32_t tenths = random_.Between(1, kMostTenths[random_.Below(8)]);
  return tenths * 100 * kNanosPerMilli + random_.Below(100) * kNanosPerMilli;
}

void StandbySimulation::DrawFaults() {
  const Instant gap = random_.Between(1, 200) * mean_fault_gap_ / 100;
  At(now_ + gap, [this] {
    if (!has_faults_) {
      return;
    }
    DrawFault();
    if (random_.OneIn(3)) {
      const int32_t num_more = random_.Between(1, 2);
      for (int32_t i = 0; i < num_more; ++i) {
        At(now_ + random_.Below(20) * kNanosPerMilli, [this] { DrawFault(); });
      }
    }
    DrawFaults();
  });
}

void StandbySimulation::Aim() {
  if (has_faults_ && random_.OneIn(12)) {
    At(now_ + random_.Below(30) * kNanosPerMilli, [this] { DrawFault(); });
  }
}

void StandbySimulation::DrawFault() {
  if (!has_faults_) {
    return;
  }
  ++totals_.num_faults;
  Scheduler& scheduler =
      last_ready_.has_value() && random_.OneIn(2)
          ? schedulers_[static_cast<size_t>(*last_ready_)]
          : schedulers_[static_cast<size_t>(random_.Below(setup_.num_schedulers))];
  const int32_t rank = random_.Below(setup_.num_ranks);
  const Instant duration = DrawDuration();
  switch (random_.Below(8)) {
    case 0:
    case 1:
      return KillScheduler(scheduler,
                           random_.OneIn(2) ? duration : kNanosPerSecond / 4,
                           /*stands_by=*/!random_.OneIn(4));
    case 2:
      return StopScheduler(scheduler, duration);
    case 3:
      return Cut(scheduler, rank, duration);
    case 4:
      return CutFromAll(scheduler, duration);
    case 5:
      return KillProcess(rank, random_.Between(1, 30) * 100 * kNanosPerMilli);
    case 6:
      return StopProcess(rank, duration);
    default:
      return random_.OneIn(2) ? KillAllSchedulers() : ReplaceRanksOf(scheduler);
  }
}

void StandbySimulation::NoteFaultOf(Scheduler& scheduler) {
  scheduler.hit_at = now_;
  scheduler_fault_at_ = now_;
  constexpr Instant kOnTheWay = 100 * kNanosPerMilli;  // its asking may be under way for so long
  if (IsHolder(scheduler) || now_ - scheduler.asked_at < kOnTheWay) {
    disturbed_at_ = now_;
  }
}

void StandbySimulation::NoteFaultOfRank(Instant over_at) {
  rank_fault_at_ = std::max(rank_fault_at_, over_at);
  for (Scheduler& scheduler : schedulers_) {
    scheduler.first_rank_fault_at = scheduler.first_rank_fault_at.value_or(now_);
  }
}

void StandbySimulation::KillScheduler(Scheduler& scheduler, Instant restart_after, bool stands_by) {
  if (!scheduler.is_alive) {
    return;
  }
  Say(NameOf(scheduler) + " ends, ms until the next " +
      std::to_string(restart_after / kNanosPerMilli));
  EndScheduler(scheduler);
  At(now_ + restart_after,
     [this, index = scheduler.index, stands_by] { StartScheduler(index, stands_by); });
}

// Restarts them together, as after a power failure.
void StandbySimulation::KillAllSchedulers() {
  const Instant restart_after = DrawDuration();
  for (Scheduler& scheduler : schedulers_) {
    KillScheduler(scheduler, restart_after + random_.Below(10) * kNanosPerMilli, true);
  }
}

// Replaces all ranks while the scheduler is cut off; the new processes never heard of it.
void StandbySimulation::ReplaceRanksOf(Scheduler& scheduler) {
  CutFromAll(scheduler, DrawDuration());
  for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
    KillProcess(rank, random_.Between(1, 10) * 100 * kNanosPerMilli);
  }
}

void StandbySimulation::EndScheduler(Scheduler& scheduler) {
  NoteFaultOf(scheduler);
  scheduler.is_alive = false;
  scheduler.is_ready = false;
  scheduler.is_stopped = false;
  scheduler.unread.clear();
  for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
    Close(scheduler, rank);
  }
  RefreshAll();
}

void StandbySimulation::StopScheduler(Scheduler& scheduler, Instant duration) {
  if (!scheduler.is_alive || scheduler.is_stopped) {
    return;
  }
  NoteFaultOf(scheduler);
  Say(NameOf(scheduler) + " is stopped for ms " + std::to_string(duration / kNanosPerMilli));
  scheduler.is_stopped = true;
  RefreshAll();
  At(now_ + duration, [this, &scheduler, start = scheduler.start] {
    if (scheduler.start == start) {
      ContinueScheduler(scheduler);
    }
  });
}

// The scheduler reads the messages that arrived meanwhile in order, with a tick at a random place.
void StandbySimulation::ContinueScheduler(Scheduler& scheduler) {
  if (!scheduler.is_alive || !scheduler.is_stopped) {
    return;
  }
  NoteFaultOf(scheduler);
  Say(NameOf(scheduler) + " goes on");
  scheduler.is_stopped = false;
  scheduler.continued_at = now_;
  RefreshAll();
  for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
    AwaitPings(scheduler.index, rank);
  }
  std::vector<std::function<void()>> unread = std::exchange(scheduler.unread, {});
  const size_t place = static_cast<size_t>(random_.Below(static_cast<int32_t>(unread.size()) + 1));
  const auto tick = [this, &scheduler] {
    scheduler.group->Tick(now_);
    Pump(scheduler);
  };
  unread.insert(unread.begin() + static_cast<std::ptrdiff_t>(place), tick);
  for (const auto& event : unread) {
    OfScheduler(scheduler, event)();
  }
}

void StandbySimulation::Cut(Scheduler& scheduler, int32_t rank, Instant duration) {
  Path& path = PathOf(scheduler.index, rank);
  NoteFaultOf(scheduler);
  Say(NameOf(scheduler) + " is cut from rank " + std::to_string(rank) + " for ms " +
      std::to_string(duration / kNanosPerMilli));
  path.is_cut = true;
  const uint64_t number = ++path.num_cuts;
  Refresh(scheduler.index, rank);
  At(now_ + duration, [this, &path, number, index = scheduler.index, rank] {
    if (path.num_cuts == number) {
      Mend(index, rank);
    }
  });
}

void StandbySimulation::CutFromAll(Scheduler& scheduler, Instant duration) {
  for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
    Cut(scheduler, rank, duration);
  }
}

void StandbySimulation::Mend(int32_t scheduler, int32_t rank) {
  Path& path = PathOf(scheduler, rank);
  if (!path.is_cut) {
    return;
  }
  NoteFaultOf(schedulers_[static_cast<size_t>(scheduler)]);
  Say("the cut of scheduler " + std::to_string(scheduler) + " from rank " + std::to_string(rank) +
      " is over");
  path.is_cut = false;
  Refresh(scheduler, rank);
}

void StandbySimulation::KillProcess(int32_t rank, Instant restart_after) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  if (!process.is_alive) {
    return;
  }
  Say("rank " + std::to_string(rank) + " ends, ms until the next " +
      std::to_string(restart_after / kNanosPerMilli));
  process.is_alive = false;
  process.is_stopped = false;
  process.unread.clear();
  for (int32_t scheduler = 0; scheduler < setup_.num_schedulers; ++scheduler) {
    for (const ConnectionPtr& connection : std::vector(PathOf(scheduler, rank).connections)) {
      if (connection->process == process.number && !connection->is_dead) {
        MarkDead(connection);
      }
    }
  }
  RefreshAll();
  const Instant load_time = random_.OneIn(2) ? 0 : random_.Between(0, 20) * 100 * kNanosPerMilli;
  NoteFaultOfRank(now_ + restart_after + load_time);
  At(now_ + restart_after, [this, rank, load_time] { StartProcess(rank, load_time); });
}

void StandbySimulation::StopProcess(int32_t rank, Instant duration) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  if (!process.is_alive || process.is_stopped) {
    return;
  }
  Say("rank " + std::to_string(rank) + " is stopped for ms " +
      std::to_string(duration / kNanosPerMilli));
  process.is_stopped = true;
  NoteFaultOfRank(now_ + duration);
  RefreshAll();
  At(now_ + duration, [this, rank, number = process.number] {
    if (ranks_[static_cast<size_t>(rank)].number == number) {
      ContinueProcess(rank);
    }
  });
}

void StandbySimulation::ContinueProcess(int32_t rank) {
  Process& process = ranks_[static_cast<size_t>(rank)];
  if (!process.is_alive || !process.is_stopped) {
    return;
  }
  Say("rank " + std::to_string(rank) + " goes on");
  process.is_stopped = false;
  NoteFaultOfRank(now_);
  RefreshAll();
  for (int32_t scheduler = 0; scheduler < setup_.num_schedulers; ++scheduler) {
    AwaitPings(scheduler, rank);
  }
  const bool looks_first = random_.OneIn(2);
  const bool is_look_due = std::exchange(process.is_look_due, false);
  if (is_look_due && looks_first) {
    Look(rank);
  }
  for (const auto& read : std::exchange(process.unread, {})) {
    read();
  }
  if (is_look_due && !looks_first) {
    Look(rank);
  }
}

}  // namespace quire
