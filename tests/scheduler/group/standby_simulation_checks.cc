// The checks of StandbySimulation.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "tests/scheduler/group/standby_simulation.h"

namespace quire {
namespace {

constexpr GroupTiming kTiming;

// Upper bound on the time from the last fault (of ranks, of the holder, of a scheduler that can
// reach all ranks) until one is ready. Worst case: a standby is cut off while it asks, so that it
// holds only some ranks. It lets go after 2 s; the ranks do not hear it for 2 s more; a report says
// so within 250 ms; dialing anew, asking and meeting take 200 ms here. (A dead holder costs 1 s
// until its connection counts as broken, 2 s and 250 ms. A scheduler whose cut ends reaches the
// ranks within 2 s and waits 2 s for its turn.)
constexpr Instant kMaxGap = 4500 * kNanosPerMilli;
// Upper bound on changes after the last fault of all: a scheduler may become ready, be taken over
// by one that does not stand by, and become ready again.
constexpr Instant kMaxUnrest = 12 * kNanosPerSecond;
// Upper bounds on the time that two are ready: until the older one gets a report from a worker, or,
// if it is cut off from all workers, until it notices their silence.
constexpr Instant kMaxOverlap = kNanosPerSecond;
constexpr Instant kMaxOverlapCutOff = 2500 * kNanosPerMilli;
// Upper bound on the age of the news by which a scheduler asks: a cut may delay a report, and then
// the asking itself, each until shortly before the connection counts as broken.
constexpr Instant kMaxAskAge = 4 * kNanosPerSecond;
// Time to report that another, living scheduler holds the workers.
constexpr Instant kMaxToSay = kNanosPerSecond;
// Time to reach all ranks after a cut: an attempt to connect and a pause.
constexpr Instant kMaxToReach = 2 * kNanosPerSecond;
// Time from a scheduler's last report until it stops taking requests, at a tick after cut_off_ns.
constexpr Instant kMaxToStopAdmitting = 7 * kNanosPerSecond;
constexpr Instant kMaxToSeeDeath = kTiming.standby_ns + kNanosPerSecond;

}  // namespace

int32_t StandbySimulation::NumReady() const {
  return static_cast<int32_t>(std::ranges::count_if(
      schedulers_, [](const Scheduler& scheduler) { return scheduler.is_ready; }));
}

bool StandbySimulation::IsSettled() const {
  return NumReady() == 1 && std::ranges::all_of(schedulers_, [](const Scheduler& scheduler) {
           return scheduler.is_alive && (scheduler.is_ready || scheduler.standby_for != 0);
         });
}

void StandbySimulation::Say(const std::string& what) const {
  if (setup_.is_verbose) {
    std::fprintf(stderr, "%9.3f %s\n", static_cast<double>(now_ - kBegan) / 1e9, what.c_str());
  }
}

void StandbySimulation::Expect(bool condition, const std::string& what) {
  if (!condition && failure_.empty()) {
    failure_ = "at " + std::to_string((now_ - kBegan) / kNanosPerMilli) + " ms: not so: " + what;
  }
}

std::string StandbySimulation::NameOf(const Scheduler& scheduler) {
  return "scheduler " + std::to_string(scheduler.index) + ", start " +
         std::to_string(scheduler.start) + ",";
}

void StandbySimulation::Audit() {
  AuditGap();
  AuditOverlap();
  AuditAdmission();
  for (Scheduler& scheduler : schedulers_) {
    AuditReports(scheduler);
  }
}

bool StandbySimulation::IsHolder(const Scheduler& scheduler) const {
  return std::ranges::any_of(ranks_, [&scheduler](const Process& process) {
    return scheduler.numbers.contains(process.claim.scheduler_incarnation());
  });
}

bool StandbySimulation::CanReachAll(const Scheduler& scheduler) const {
  if (!scheduler.is_alive || scheduler.is_stopped) {
    return false;
  }
  for (int32_t rank = 0; rank < setup_.num_ranks; ++rank) {
    const Process& process = ranks_[static_cast<size_t>(rank)];
    const Path& path =
        paths_[static_cast<size_t>(scheduler.index) * ranks_.size() + static_cast<size_t>(rank)];
    if (path.is_cut || !process.is_alive || process.is_stopped || now_ < process.loaded_at) {
      return false;
    }
  }
  return true;
}

void StandbySimulation::AuditGap() {
  Instant gap = 0;
  for (const Scheduler& scheduler : schedulers_) {
    if (scheduler.is_alive && scheduler.is_ready && !scheduler.is_stopped) {
      return;
    }
    if (CanReachAll(scheduler)) {
      gap =
          std::max(gap, now_ - std::max({scheduler.hit_at, rank_fault_at_, disturbed_at_, kBegan}));
    }
  }
  totals_.longest_gap = std::max(totals_.longest_gap, gap);
  Expect(gap <= kMaxGap, "liveness: a scheduler that reaches all ranks is ready after a while");
}

void StandbySimulation::AuditOverlap() {
  if (!overlap_.has_value()) {
    return;
  }
  const Scheduler& older = schedulers_[static_cast<size_t>(overlap_->older)];
  const Scheduler& newer = schedulers_[static_cast<size_t>(overlap_->newer)];
  if (!older.is_ready || !newer.is_ready) {
    overlap_.reset();
    return;
  }
  if (older.is_stopped || newer.is_stopped) {
    return;
  }
  const Instant duration = now_ - std::max({overlap_->began_at, older.continued_at});
  totals_.longest_overlap = std::max(totals_.longest_overlap, duration);
  const bool is_fair = CanReachAll(older) && older.hit_at < overlap_->began_at &&
                       rank_fault_at_ < overlap_->began_at;
  Expect(duration <= (is_fair ? kMaxOverlap : kMaxOverlapCutOff),
         NameOf(older) + " is superseded and does not know it");
}

void StandbySimulation::AuditAdmission() {
  Instant last_hit_at = rank_fault_at_;
  int32_t num_admitting = 0;
  for (const Scheduler& scheduler : schedulers_) {
    if (scheduler.is_alive && !scheduler.is_stopped && scheduler.has_requests) {
      ++num_admitting;
      last_hit_at = std::max({last_hit_at, scheduler.hit_at, scheduler.continued_at});
    }
  }
  if (num_admitting < 2) {
    several_admit_since_.reset();
    return;
  }
  several_admit_since_ = several_admit_since_.value_or(now_);
  const Instant duration = now_ - std::max(*several_admit_since_, last_hit_at);
  Expect(duration <= kMaxToStopAdmitting, "one scheduler alone takes requests for long");
}

// Looks at the ranks themselves, so it holds whichever of them the scheduler reaches.
void StandbySimulation::ExpectHolderIsSilent(const Scheduler& scheduler) {
  const uint64_t holder = NewestHolder();
  const bool is_heard = IsHeardByAll(holder) && now_ - scheduler.continued_at > kMaxAskAge;
  Expect(!is_heard || scheduler.numbers.contains(holder),
         NameOf(scheduler) + " stands by for one that all ranks hear");
}

// Returns the newest holder that workers named to this scheduler, or nullopt if it is none or one
// of the scheduler's own numbers.
std::optional<StandbySimulation::Told> StandbySimulation::ToldOfOther(
    const Scheduler& scheduler) const {
  Told newest;
  for (const std::optional<Told>& told : scheduler.told) {
    if (!told.has_value() || told->holder < newest.holder) {
      continue;
    }
    const int64_t silence_ns = told->holder > newest.holder ? 0 : newest.silence_ns;
    newest = {told->holder, std::max(silence_ns, told->silence_ns)};
  }
  const bool is_other = newest.holder != 0 && !scheduler.numbers.contains(newest.holder);
  return is_other ? std::optional(newest) : std::nullopt;
}

void StandbySimulation::AuditReports(Scheduler& scheduler) {
  if (!scheduler.is_alive || scheduler.is_stopped) {
    scheduler.must_say_since.reset();
    return;
  }
  const std::optional<Told> other = ToldOfOther(scheduler);
  const uint64_t own = scheduler.group->scheduler_incarnation();
  const bool has_others =
      other.has_value() && other->silence_ns < kTiming.standby_ns &&
      (other->holder > own || (scheduler.stands_by && own != scheduler.last_asked));
  const bool says_so = scheduler.standby_for != 0 && !scheduler.is_ready;
  const bool is_news =
      has_others && std::exchange(scheduler.holder_to_report, other->holder) != other->holder;
  if (!has_others || says_so || is_news) {
    scheduler.must_say_since.reset();
    return;
  }
  scheduler.must_say_since = scheduler.must_say_since.value_or(now_);
  const Instant since = std::max(*scheduler.must_say_since, scheduler.continued_at);
  const bool is_heard = std::ranges::any_of(ranks_, [this, &other](const Process& process) {
    return process.claim.scheduler_incarnation() == other->holder &&
           now_ - process.heard_since > kMaxToSay && now_ - process.heard_at < kMaxToSay / 2;
  });
  const bool reaches_all =
      CanReachAll(scheduler) && now_ - scheduler.hit_at > kMaxToReach + kMaxToSay;
  const bool lives = is_heard && reaches_all;
  Expect(now_ - since <= (lives || scheduler.is_ready ? kMaxToSay : kMaxToSeeDeath),
         NameOf(scheduler) + " says that it is superseded, or stands by");
}

// Returns true if this scheduler holds all ranks when it reports ready. If not, a newer one took
// them and the news is under way.
bool StandbySimulation::HasAllRanks(const Scheduler& scheduler) const {
  return std::ranges::all_of(ranks_, [&scheduler](const Process& process) {
    return process.claim.scheduler_incarnation() == scheduler.group->scheduler_incarnation();
  });
}

void StandbySimulation::NoteReady(const Scheduler& scheduler) {
  const bool is_other = last_ready_.has_value() && last_ready_start_ != scheduler.start;
  const bool has_all = HasAllRanks(scheduler);
  if (is_other) {
    const Scheduler& other = schedulers_[static_cast<size_t>(*last_ready_)];
    if (other.start == last_ready_start_ && other.is_ready) {
      overlap_ = has_all ? Overlap{other.index, scheduler.index, now_}
                         : Overlap{scheduler.index, other.index, now_};
      ++totals_.num_overlaps;
    }
  }
  if (has_all) {
    totals_.num_takeovers += is_other ? 1 : 0;
    last_ready_ = scheduler.index;
    last_ready_start_ = scheduler.start;
    last_ready_at_ = now_;
  }
}

uint64_t StandbySimulation::NewestHolder() const {
  uint64_t newest = 0;
  for (const Process& process : ranks_) {
    newest = std::max(newest, process.claim.scheduler_incarnation());
  }
  return newest;
}

void StandbySimulation::ExpectMayAsk(Scheduler& scheduler) {
  const uint64_t own = scheduler.group->scheduler_incarnation();
  const auto [place, is_new] = starts_by_number_.emplace(own, scheduler.start);
  Expect(is_new || place->second == scheduler.start, "no two schedulers ask under one number");
  scheduler.asked_at = now_;
  const bool may_take_at_once = !scheduler.stands_by && scheduler.last_asked == 0;
  const bool asks_again = std::exchange(scheduler.last_asked, own) == own;
  totals_.num_renamed += is_new && own != *scheduler.numbers.begin() ? 1 : 0;
  const bool is_impaired = !CanReachAll(scheduler) || now_ - scheduler.hit_at < kMaxGap;
  disturbed_at_ = is_impaired ? std::max(disturbed_at_, scheduler.hit_at) : disturbed_at_;

  const std::optional<Told> other = ToldOfOther(scheduler);
  const bool must_wait = other.has_value() && other->silence_ns < kTiming.standby_ns &&
                         (other->holder > own || (!may_take_at_once && !asks_again));
  Expect(!must_wait, NameOf(scheduler) + " asks for no workers that have another scheduler");
}

// Returns true if all ranks have heard this holder for longer than news takes to arrive.
bool StandbySimulation::IsHeardByAll(uint64_t holder) const {
  return holder != 0 && std::ranges::all_of(ranks_, [this, holder](const Process& process) {
           return process.is_alive && process.claim.scheduler_incarnation() == holder &&
                  now_ - process.claimed_at > kMaxAskAge &&
                  now_ - process.heard_since > kMaxAskAge &&
                  now_ - process.heard_at < kNanosPerSecond;
         });
}

// Called when a rank is asked under a number newer than any before.
void StandbySimulation::ExpectIsNotHeard(const Scheduler& asking, uint64_t asks_as) {
  const uint64_t holder = NewestHolder();
  if (holder == 0 || holder > asks_as || asking.numbers.contains(holder) || !asking.stands_by) {
    return;
  }
  Expect(!IsHeardByAll(holder), NameOf(asking) + " asks for no workers that all hear another one");
}

void StandbySimulation::ExpectMayBeReady(const Scheduler& scheduler) {
  Expect(scheduler.standby_for == 0, "who is ready said that it stands by no more");
  const Instant fault_at = std::max({scheduler_fault_at_, rank_fault_at_, kBegan});
  Expect(now_ - fault_at <= kMaxUnrest, "no duel: nothing changes without a fault");
  if (!last_ready_.has_value() || last_ready_start_ == scheduler.start || !scheduler.stands_by) {
    return;
  }
  const Scheduler& last = schedulers_[static_cast<size_t>(*last_ready_)];
  Expect(last.start != last_ready_start_ || !last.was_lost_to_rank ||
             scheduler_fault_at_ >= last.lost_at,
         "the death of a rank does not change who has the others");
}

void StandbySimulation::NoteLost(Scheduler& scheduler) {
  const Instant fault_at = std::max({scheduler_fault_at_, rank_fault_at_, kBegan});
  Expect(now_ - fault_at <= kMaxUnrest, "nothing is lost without a fault");
  scheduler.lost_at = now_;
  // Only a rank's fault can be the cause, and all schedulers had heard of this one before it.
  const Instant rank_fault_at = scheduler.first_rank_fault_at.value_or(now_);
  scheduler.was_lost_to_rank =
      now_ - scheduler_fault_at_ > kMaxUnrest && rank_fault_at - scheduler.ready_at > kMaxToSay;
}

}  // namespace quire
