// The connections of StandbySimulation.
#include <algorithm>
#include <utility>

#include "tests/scheduler/group/standby_simulation.h"

namespace quire {

StandbySimulation::Path& StandbySimulation::PathOf(int32_t scheduler, int32_t rank) {
  return paths_[static_cast<size_t>(scheduler) * ranks_.size() + static_cast<size_t>(rank)];
}

StandbySimulation::Path& StandbySimulation::PathOf(const Connection& connection) {
  return PathOf(connection.scheduler, connection.link.rank);
}

void StandbySimulation::Send(const ConnectionPtr& connection,
                             End to,
                             bool in_order,
                             std::function<void()> message) {
  Instant arrival = now_ + Soon();
  if (in_order) {
    Instant& last = connection->last_arrival[static_cast<size_t>(to)];
    arrival = std::max(arrival, last + 1);
    last = arrival;
  }
  At(arrival,
     [this, connection, to, message = std::move(message)] { Arrive(connection, to, message); });
}

void StandbySimulation::Arrive(const ConnectionPtr& connection,
                               End to,
                               const std::function<void()>& message) {
  if (connection->is_dead) {
    return;
  }
  if (PathOf(*connection).is_cut) {
    connection->held.emplace_back(
        [this, connection, to, message] { Arrive(connection, to, message); });
  } else if (to == End::kWorker) {
    ArriveAtWorker(connection, message);
  } else {
    ArriveAtScheduler(connection, message);
  }
}

void StandbySimulation::ArriveAtWorker(const ConnectionPtr& connection,
                                       const std::function<void()>& message) {
  Process& process = ProcessOf(*connection);
  if (connection->process == 0) {
    connection->process = process.number;
  }
  if (!process.is_alive || connection->process != process.number) {
    return MarkDead(connection);
  }
  const auto read = [this, connection, message, number = process.number] {
    const Process& reader = ProcessOf(*connection);
    if (reader.number == number && reader.is_alive) {
      connection->is_established = true;
      message();
    }
  };
  if (process.is_stopped) {
    process.unread.emplace_back(read);
  } else {
    read();
  }
}

void StandbySimulation::ArriveAtScheduler(const ConnectionPtr& connection,
                                          const std::function<void()>& message) {
  Scheduler& scheduler = schedulers_[static_cast<size_t>(connection->scheduler)];
  if (scheduler.start != connection->start || !scheduler.is_alive) {
    return;
  }
  OfScheduler(scheduler, message)();
}

// One end closed the connection. The other end notices if the path is open, or by missing pings.
void StandbySimulation::MarkDead(const ConnectionPtr& connection) {
  connection->is_dead = true;
  connection->held.clear();
  At(now_ + Soon(), [this, connection] { NoticeDeath(connection); });
}

void StandbySimulation::NoticeDeath(const ConnectionPtr& connection) {
  if (PathOf(*connection).is_cut) {
    return;  // noticed when the path is mended, or by AwaitPings
  }
  Process& process = ProcessOf(*connection);
  Scheduler& scheduler = schedulers_[static_cast<size_t>(connection->scheduler)];
  const auto notice_at_worker = [this, connection] { NoticeAtWorker(connection); };
  const auto notice_at_scheduler = [this, connection] { NoticeAtScheduler(connection); };
  if (process.is_stopped) {
    process.unread.emplace_back(notice_at_worker);
  } else {
    notice_at_worker();
  }
  if (scheduler.is_stopped) {
    scheduler.unread.emplace_back(notice_at_scheduler);
  } else {
    notice_at_scheduler();
  }
}

void StandbySimulation::NoticeAtWorker(const ConnectionPtr& connection) {
  connection->is_watched = false;
}

void StandbySimulation::NoticeAtScheduler(const ConnectionPtr& connection) {
  Scheduler& scheduler = schedulers_[static_cast<size_t>(connection->scheduler)];
  const bool is_of_before = scheduler.start != connection->start || !scheduler.is_alive;
  if (is_of_before || connection->is_closed || std::exchange(connection->is_told, true)) {
    return;
  }
  const absl::Status status = absl::UnavailableError("the connection broke");
  Say(NameOf(scheduler) + " sees the connection to rank " + std::to_string(connection->link.rank) +
      " broken");
  scheduler.group->OnStepsEnd(connection->link, status, now_);
  scheduler.group->OnEpochBegun(connection->link, status, now_);
  scheduler.group->OnHello(connection->link, status, now_);
  scheduler.group->OnWatchEnd(connection->link, status, now_);
  Pump(scheduler);
}

// Called after each change of the path or of its ends.
void StandbySimulation::Refresh(int32_t scheduler, int32_t rank) {
  Path& path = PathOf(scheduler, rank);
  std::erase_if(path.connections, [](const ConnectionPtr& connection) {
    return connection->is_dead && !connection->is_watched && connection->is_told;
  });
  const bool is_broken = path.is_cut || schedulers_[static_cast<size_t>(scheduler)].is_stopped ||
                         ranks_[static_cast<size_t>(rank)].is_stopped;
  if (is_broken && !path.is_broken) {
    path.is_broken = true;
    AwaitPings(scheduler, rank);
  } else if (!is_broken && path.is_broken) {
    path.is_broken = false;
    MendPath(path);
  }
}

void StandbySimulation::RefreshAll() {
  for (int32_t scheduler = 0; scheduler < setup_.num_schedulers; ++scheduler) {
    for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
      Refresh(scheduler, rank);
    }
  }
}

// Pings are sent every 500 ms and must be answered within 500 ms.
void StandbySimulation::AwaitPings(int32_t scheduler, int32_t rank) {
  Path& path = PathOf(scheduler, rank);
  if (!path.is_broken) {
    return;
  }
  const uint64_t number = ++path.num_breaks;
  At(now_ + random_.Between(500, 1000) * kNanosPerMilli, [this, &path, number, scheduler, rank] {
    if (!path.is_broken || path.num_breaks != number) {
      return;
    }
    for (const ConnectionPtr& connection : std::vector(path.connections)) {
      if (!connection->is_established && !connection->is_dead) {
        continue;
      }
      connection->is_dead = true;
      connection->held.clear();
      if (!ranks_[static_cast<size_t>(rank)].is_stopped) {
        NoticeAtWorker(connection);
      }
      if (!schedulers_[static_cast<size_t>(scheduler)].is_stopped) {
        NoticeAtScheduler(connection);
      }
    }
  });
}

// Delivers held messages late, as TCP does: its retransmission pauses doubled during the cut.
void StandbySimulation::MendPath(Path& path) {
  for (const ConnectionPtr& connection : path.connections) {
    if (connection->is_dead) {
      At(now_ + Soon(), [this, connection] { NoticeDeath(connection); });
    } else if (!connection->held.empty()) {
      At(now_ + random_.Between(1, 1000) * kNanosPerMilli, [connection] {
        for (const auto& message : std::exchange(connection->held, {})) {
          message();
        }
      });
    }
  }
}

}  // namespace quire
