// The faults of GroupSimulation.
#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "tests/scheduler/group/group_simulation.h"

namespace quire {
namespace {

// Upper bounds on the time until a stopped or hanging rank is lost: the silence or step timeout,
// reports, an earlier broken connection or lost step, and a slow answer of a rank it waits for.
constexpr Instant kMostSilence = 6 * kNanosPerSecond;
constexpr Instant kMostHanging = 16 * kNanosPerSecond;
// Time until a worker whose executor ignores a newer epoch ends itself.
constexpr Instant kEndsItself = 10 * kNanosPerSecond;

}  // namespace

void GroupSimulation::DrawFault() {
  ++totals_.num_faults;
  DrawFaultOf(ranks_[static_cast<size_t>(random_.Below(num_ranks()))]);
}

void GroupSimulation::DrawFaultOf(Rank& rank) {
  switch (random_.Below(9)) {
    case 0:
      return Kill(rank, random_.Between(1, 30) * 100 * kNanosPerMilli);
    case 1:
      return Stop(rank);
    case 2:
      rank.process.hangs_next = true;
      return;
    case 3:
      rank.cut_until = now_ + random_.Between(1, 40) * 100 * kNanosPerMilli;
      return;
    case 4:
      return Break(rank.link);
    case 5:
      return Spoil(rank);
    case 6:
      return RepeatAnswer(rank);
    case 7:
      return TakeOver(rank);
    default:
      return AnswerOtherPlan(rank);
  }
}

void GroupSimulation::Start(Rank& rank, bool has_other_weights) {
  rank.process = Process();
  rank.process.number = ++last_process_;
  rank.process.is_alive = true;
  rank.process.has_other_weights = has_other_weights;
  rank.process.num_blocks = random_.Between(20, 40);
  rank.process.loaded_at = now_ + random_.Between(0, 20) * 100 * kNanosPerMilli;
}

void GroupSimulation::Kill(Rank& rank, Instant restart_after) {
  if (!rank.process.is_alive) {
    return;
  }
  rank.process.is_alive = false;
  rank.process.unread.clear();
  Break(rank.link);
  const bool draws_other_weights = has_faults_ && totals_.num_epochs > 0 && random_.OneIn(6);
  const bool draws_spare = has_faults_ && random_.OneIn(8);
  At(now_ + restart_after, [this, &rank, draws_other_weights, draws_spare] {
    // The first group of a scheduler pins the weights.
    const bool has_other_weights = draws_other_weights && was_ready_;
    Start(rank, has_other_weights);
    if (has_other_weights) {
      At(now_ + random_.Between(1, 10) * kNanosPerSecond,
         [this, &rank, number = rank.process.number] {
           if (rank.process.number == number) {
             Kill(rank, kNanosPerSecond);
           }
         });
    } else if (draws_spare) {
      rank.process.loaded_at = now_;
      TakeOver(rank);
    }
  });
}

void GroupSimulation::ExpectLostIn(Instant delay,
                                   const Rank& rank,
                                   bool Process::*state,
                                   const std::string& what) {
  const uint64_t number = rank.process.number;
  At(now_ + delay,
     [this, &rank, number, state, what, epoch = group_->group_epoch(), num = totals_.num_faults] {
       const bool is_as_it_was =
           rank.process.number == number && totals_.num_faults == num && rank.process.*state;
       Expect(!is_as_it_was || !has_epoch_ || group_->group_epoch() != epoch, what);
     });
}

void GroupSimulation::Stop(Rank& rank) {
  if (!rank.process.is_alive || rank.process.is_stopped) {
    return;
  }
  rank.process.is_stopped = true;
  const Instant duration = random_.Between(1, 100) * 100 * kNanosPerMilli;
  const uint64_t number = rank.process.number;
  if (has_epoch_) {
    ExpectLostIn(kMostSilence, rank, &Process::is_stopped, "a rank that is stopped is lost");
  }
  At(now_ + duration, [this, &rank, number] {
    if (rank.process.number != number || !rank.process.is_alive) {
      return;
    }
    rank.process.is_stopped = false;
    for (const auto& read : std::exchange(rank.process.unread, {})) {
      read();
    }
  });
}

// Hangs in the step that it was just given; the other ranks answer theirs.
void GroupSimulation::Hang(Rank& rank) {
  constexpr WorkerPhase kPhases[] = {WorkerPhase::kExecuting,
                                     WorkerPhase::kLoading,
                                     WorkerPhase::kBeginningEpoch,
                                     WorkerPhase::kUnknown};
  const uint64_t number = rank.process.number;
  rank.process.hanging_phase = kPhases[random_.Below(4)];
  if (random_.OneIn(2)) {
    rank.process.hanging_waits_for = random_.Below(num_ranks());
  }
  ExpectLostIn(kMostHanging, rank, &Process::is_hanging, "a rank that hangs is lost");
  At(now_ + kMostHanging + kEndsItself, [this, &rank, number] {
    if (rank.process.number == number) {
      Kill(rank, kNanosPerSecond);
    }
  });
}

void GroupSimulation::Spoil(Rank& rank) {
  // Corruption is found by comparing ranks, so one rank alone is spared.
  if (num_ranks() > 1 && has_epoch_ && rank.process.is_alive && rank.process.worker != nullptr &&
      rank.process.order.group_epoch() == group_->group_epoch()) {
    for (BlockId block_id = 1; block_id < limits_.num_blocks; ++block_id) {
      if (random_.OneIn(4)) {
        // A mask of its own for each process: ranks that are spoiled alike would agree.
        rank.process.worker->SpoilBlock(block_id, ~rank.process.number);
      }
    }
  }
}

// Delivers the last answer again, even if its connection, step or epoch is over.
void GroupSimulation::RepeatAnswer(Rank& rank) {
  if (!rank.last_answer.has_value()) {
    return;
  }
  const auto& [link, result] = *rank.last_answer;
  if (plan_.has_value() && result.header == plan_->header) {
    return;  // it answers the current plan
  }
  was_stale_ = false;
  was_lost_ = false;
  group_->OnAnswer(random_.OneIn(2) ? link : rank.link, result, now_);
  Pump();
  Expect(was_stale_ && !was_lost_, "an answer of before is stale, and does no harm to the group");
}

void GroupSimulation::AnswerOtherPlan(Rank& rank) {
  if (!plan_.has_value() || !group_->is_ready()) {
    return;
  }
  was_stale_ = false;
  was_lost_ = false;
  group_->OnAnswer(rank.link, {.header = plan_->header, .plan_digest = plan_->digest + 1}, now_);
  Pump();
  Expect(was_stale_ || was_lost_, "an answer to another plan loses the group");
}

// Another scheduler asks for this rank, lives for a while, and is never heard of again. If the
// simulated scheduler was ready and hears of the other while it lives, it stands by. Otherwise it
// waits, and takes the rank back.
void GroupSimulation::TakeOver(Rank& rank) {
  if (!rank.process.is_alive || rank.process.is_stopped || rank.process.is_hanging ||
      now_ < rank.process.loaded_at) {
    return;
  }
  const uint64_t newest =
      std::max(rank.process.claim.scheduler_incarnation(), group_->scheduler_incarnation());
  Expect(rank.process.claim.Ask(newest + 1, 1, now_).ok(), "the newest scheduler is refused");
  rank.process.order.BeginEpoch(newest + 1, 1);
  rank.process.busy_until = now_;
  rank.process.other_leaves_at =
      random_.OneIn(2) ? now_ : now_ + random_.Between(1, 60) * 100 * kNanosPerMilli;
}

// Returns a holder that no correct worker names.
uint64_t GroupSimulation::DrawNonsense() {
  constexpr uint64_t kHolders[] = {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 60};
  return kHolders[random_.Below(3)];
}

// Replaces the scheduler by one whose clock went back to the start. Drops messages to the old one.
void GroupSimulation::StartScheduler() {
  ForgetEpoch();
  ++num_schedulers_;
  group_.emplace(settings_, num_ranks(), kIncarnation, GroupTiming());
  for (Rank& rank : ranks_) {
    rank.link = {};
    rank.begun_link = {};
    rank.connected.clear();
    rank.last_answer.reset();
  }
}

// Draws swap-ins that fail. One rank reports them, but the results of all ranks are wrong.
void GroupSimulation::DrawFailedSwapIns(const StepPlan& plan) {
  failed_swap_ins_.clear();
  failing_rank_ = random_.Below(num_ranks());
  for (const BlockSwapIn& swap : plan.swap_ins) {
    if (has_faults_ && random_.OneIn(10)) {
      failed_swap_ins_.insert(swap.block);
    }
  }
}

}  // namespace quire
