// WorkerGroupTest plays the workers of a WorkerGroup: the test takes and answers its actions.
//
// Thread safety: one thread.
#ifndef QUIRE_TESTS_SCHEDULER_GROUP_WORKER_GROUP_FIXTURE_H_
#define QUIRE_TESTS_SCHEDULER_GROUP_WORKER_GROUP_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "scheduler/group/worker_group.h"
#include "tests/support/with_digest.h"

namespace quire {

inline constexpr uint64_t kIncarnation = 1000;
inline constexpr GroupTiming kTiming;

inline GroupSettings Settings(bool stands_by = true) {
  GroupSettings settings;
  settings.stands_by = stands_by;
  settings.model = {.vocab_size = 100, .max_position_embeddings = 50};
  return settings;
}

inline WorkerHello HelloOf(int32_t rank) {
  WorkerHello hello;
  hello.uuid = "process of rank " + std::to_string(rank);
  hello.config_hash = HashOf(Settings().model);
  hello.model_hash = 1;
  hello.num_blocks_max = 20;
  hello.kv_cache_dtype = DType::kF32;
  hello.determinism_fingerprint = "cpu";
  hello.vocab_size = 100;
  hello.rendezvous = "place of rank " + std::to_string(rank);
  return hello;
}

class WorkerGroupTest : public testing::Test {
 protected:
  explicit WorkerGroupTest(int32_t num_ranks = 2,
                           bool stands_by = true,
                           const GroupTiming& timing = kTiming)
      : num_ranks_(num_ranks),
        group_(Settings(stands_by), num_ranks, kIncarnation, timing),
        links_(static_cast<size_t>(num_ranks)),
        hellos_(static_cast<size_t>(num_ranks)),
        holders_(static_cast<size_t>(num_ranks)) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      hellos_[static_cast<size_t>(rank)] = HelloOf(rank);
    }
  }

  // Returns and forgets the actions of one kind since the last call.
  template <typename Action>
  std::vector<Action> Take() {
    Collect();
    std::vector<Action> taken;
    std::vector<GroupAction> rest;
    for (GroupAction& action : actions_) {
      if (std::holds_alternative<Action>(action)) {
        taken.push_back(std::get<Action>(std::move(action)));
      } else {
        rest.push_back(std::move(action));
      }
    }
    actions_ = std::move(rest);
    return taken;
  }
  void Collect() {
    for (GroupAction& action : group_.TakeActions()) {
      if (const auto* dial = std::get_if<DialLink>(&action)) {
        links_[static_cast<size_t>(dial->link.rank)] = dial->link;
      }
      actions_.push_back(std::move(action));
    }
  }
  LinkId Link(int32_t rank) {
    Collect();
    return links_[static_cast<size_t>(rank)];
  }

  // Ticks every 100 ms from the last tick up to now_ + after_ns.
  void Tick(int64_t after_ns = 0) {
    now_ += after_ns;
    do {
      ticked_ = std::min(now_, ticked_ + 100 * kNanosPerMilli);
      group_.Tick(ticked_);
    } while (ticked_ < now_);
  }
  // Simulates a scheduler that was stopped: a single tick after the whole duration.
  void StandStill(int64_t duration_ns) {
    ticked_ = now_ += duration_ns;
    group_.Tick(now_);
  }
  // Lets time pass while every rank keeps reporting.
  void PassQuietly(int64_t duration_ns) {
    const Instant end = now_ + duration_ns;
    while (now_ < end) {
      now_ = std::min(end, now_ + 100 * kNanosPerMilli);
      for (int32_t rank = 0; rank < num_ranks_; ++rank) {
        Report(rank, {.phase = WorkerPhase::kUnknown, .progress = 0});
      }
      Tick();
    }
  }
  // Sends a first report, then the hello, as a worker that answers quickly.
  void Hello(int32_t rank) {
    Report(rank, {});
    group_.OnHello(Link(rank), HelloAt(rank), now_);
  }
  // All ranks report this holder.
  void ReportHolder(uint64_t incarnation, int64_t silence_ns = 0) {
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      ReportHolderAt(rank, incarnation, silence_ns);
    }
  }
  void ReportHolderAt(int32_t rank, uint64_t incarnation, int64_t silence_ns = 0) {
    holders_[static_cast<size_t>(rank)] = {incarnation, silence_ns};
    Report(rank, {});
  }
  WorkerHello& HelloAt(int32_t rank) { return hellos_[static_cast<size_t>(rank)]; }
  void Report(int32_t rank, WorkerReport report) {
    report.uuid = HelloAt(rank).uuid;
    std::tie(report.holder_incarnation, report.holder_silence_ns) =
        holders_[static_cast<size_t>(rank)];
    report.scheduler_incarnation = group_.scheduler_incarnation();
    report.group_epoch = group_.group_epoch();
    group_.OnReport(Link(rank), report, now_);
  }
  static absl::Status Stale() {
    return Error(absl::StatusCode::kFailedPrecondition, "STALE_SCHEDULER", "scheduler: too old");
  }
  // Makes the next epoch ready. Returns true if the loss before it counts as a crash.
  bool WasCrash() {
    BecomeReady();
    return after_crash_;
  }
  // Lets all ranks join and begin. Returns the number of the epoch, which is ready.
  uint64_t BecomeReady() {
    Tick(kTiming.max_backoff_ns);
    StandStill(WorkerGroup::kLateTickNs);  // silence is counted from here on
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      Hello(rank);
    }
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      group_.OnEpochBegun(Link(rank), absl::OkStatus(), now_);
    }
    const auto ready = Take<ReportReady>();
    EXPECT_THAT(ready, testing::SizeIs(1));
    EXPECT_TRUE(group_.is_ready());
    after_crash_ = !ready.empty() && ready.back().after_crash;
    step_id_ = 0;
    actions_.clear();
    return group_.group_epoch();
  }
  StepPlan Plan() {
    StepPlan plan;
    plan.header = {.scheduler_incarnation = group_.scheduler_incarnation(),
                   .group_epoch = group_.group_epoch(),
                   .step_id = ++step_id_};
    plan.swap_ins = {{.block = 4, .host_block = 0, .generation = 1},
                     {.block = 2, .host_block = 1, .generation = 1}};
    plan = WithDigest(std::move(plan));
    group_.Plan(plan, now_);
    return plan;
  }
  static StepResult ResultOf(const StepPlan& plan) {
    StepResult result{.header = plan.header, .plan_digest = plan.digest};
    result.sampled = {{.handle = 1, .token_id = 5}};
    return result;
  }
  void Answer(int32_t rank, const StepPlan& plan) {
    group_.OnAnswer(Link(rank), ResultOf(plan), now_);
  }

  const int32_t num_ranks_;
  WorkerGroup group_;
  Instant now_ = 1;
  Instant ticked_ = now_;
  uint64_t step_id_ = 0;
  bool after_crash_ = false;  // of the last ready epoch
  std::vector<GroupAction> actions_;
  std::vector<LinkId> links_;  // current links, by rank
  std::vector<WorkerHello> hellos_;
  std::vector<std::pair<uint64_t, int64_t>> holders_;  // holder and its silence in the next report
};

class ThreeRanksTest : public WorkerGroupTest {
 protected:
  ThreeRanksTest() : WorkerGroupTest(3) {}
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_GROUP_WORKER_GROUP_FIXTURE_H_
