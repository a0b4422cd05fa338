// Watch, as a scheduler and a supervisor see it.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include <gtest/gtest.h>

#include "common/wire/watch_stream.h"
#include "tests/worker/rpc/worker_service_fixture.h"
#include "worker/rpc/worker_reporter.h"

namespace quire {
namespace {

// The reports of one Watch call, and how it ended.
class Watcher {
 public:
  explicit Watcher(Stub& stub)
      : stream_(stub,
                /*scheduler_incarnation=*/0,
                {.on_report = [this](const v1::WatchReport& report) { Add(report); },
                 .on_end = [this](const absl::Status& status) { End(status); }}) {}

  ~Watcher() {
    stream_.Cancel();
    ended_.WaitForNotification();
  }

  // The first report, past or future, that is as the test wants it.
  template <typename Predicate>
  v1::WatchReport WaitFor(const Predicate& is_wanted) {
    std::unique_lock<std::mutex> lock(mutex_);
    size_t seen = 0;
    std::optional<v1::WatchReport> found;
    auto look = [&] {
      for (; seen < reports_.size() && !found.has_value(); ++seen) {
        if (is_wanted(reports_[seen])) {
          found = reports_[seen];
        }
      }
      return found.has_value();
    };
    EXPECT_TRUE(changed_.wait_for(lock, kDeadline, look));
    return found.value_or(v1::WatchReport());
  }

  v1::WatchReport WaitForPhase(v1::WorkerPhase phase) {
    return WaitFor([phase](const v1::WatchReport& report) { return report.phase() == phase; });
  }

  absl::Status WaitForEnd() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(absl::FromChrono(kDeadline)));
    return end_;
  }

 private:
  void Add(const v1::WatchReport& report) {
    const std::lock_guard<std::mutex> lock(mutex_);
    reports_.push_back(report);
    changed_.notify_all();
  }
  void End(const absl::Status& status) {
    end_ = status;
    ended_.Notify();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::WatchReport> reports_;  // under mutex_
  absl::Notification ended_;
  absl::Status end_;  // written before ended_
  WatchStream stream_;
};

TEST_F(LoadingWorkerTest, WatchersSeeTheLoadAndThenAnIdleWorker) {
  Watcher watcher(*stub_);

  const v1::WatchReport first = watcher.WaitForPhase(v1::WORKER_PHASE_LOADING);
  progress_.Load(300, 1000);
  const v1::WatchReport later =
      watcher.WaitFor([](const v1::WatchReport& report) { return report.loaded_bytes() > 0; });
  Serve();
  const v1::WatchReport last = watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);

  EXPECT_EQ(first.worker_uuid(), progress_.uuid());
  EXPECT_EQ(first.loaded_bytes(), 0);
  EXPECT_EQ(later.loaded_bytes(), 300);
  EXPECT_EQ(later.total_bytes(), 1000);
  EXPECT_NE(later.progress(), first.progress());
  EXPECT_NE(last.progress(), later.progress());
  EXPECT_EQ(last.num_steps(), 0U);
}

TEST_F(LoadingWorkerTest, OperationsOfTheBackendAreProgress) {
  const uint64_t before = progress_.Read().report.progress();
  EXPECT_EQ(progress_.Read().report.progress(), before);

  backend_->CopyBlocks({});

  EXPECT_GT(progress_.Read().report.progress(), before);
}

TEST_F(WorkerServiceTest, WatchersSeeEpochsAndSteps) {
  Watcher watcher(*stub_);
  Watcher other(*stub_);
  absl::Notification is_running;
  absl::Notification may_end;
  ASSERT_TRUE(BeginEpoch(3, 7).ok());
  StepsConversation steps(*stub_);
  ASSERT_TRUE(steps.Exchange(Prefill(3, 7, {4, 5, 6})).ok());
  model_.OnRun([&](const Batch& /*batch*/) {
    is_running.Notify();
    may_end.WaitForNotification();
  });

  ASSERT_TRUE(steps.Send(Decode(3, 7, 2)));
  is_running.WaitForNotification();
  const v1::WatchReport during = watcher.WaitForPhase(v1::WORKER_PHASE_EXECUTING);
  const v1::WatchReport for_other = other.WaitForPhase(v1::WORKER_PHASE_EXECUTING);
  may_end.Notify();
  ASSERT_TRUE(steps.Receive().ok());
  const v1::WatchReport after =
      watcher.WaitFor([](const v1::WatchReport& report) { return report.num_steps() == 2; });

  EXPECT_EQ(during.scheduler_incarnation(), 3U);
  EXPECT_EQ(during.group_epoch(), 7U);
  EXPECT_EQ(during.step_id(), 2U);
  EXPECT_EQ(during.num_steps(), 1U);
  EXPECT_EQ(for_other.progress(), during.progress());  // the step stands still
  EXPECT_EQ(after.phase(), v1::WORKER_PHASE_IDLE);
  EXPECT_EQ(after.step_id(), 2U);
  EXPECT_NE(after.progress(), during.progress());
}

TEST_F(WindowedWorkerServiceTest, WatchersSeeHowManyPlacesAreMapped) {
  Watcher watcher(*stub_);
  const auto await_places = [&watcher](uint64_t epoch, int64_t num_places) {
    return watcher.WaitFor([=](const v1::WatchReport& report) {
      return report.group_epoch() == epoch && report.num_window_places() == num_places;
    });
  };
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  await_places(1, 0);
  StepsConversation steps(*stub_);

  ASSERT_TRUE(steps.Exchange(Prefill(1, 1, {4, 5, 6, 7, 8, 9, 10, 11, 12})).ok());

  EXPECT_EQ(await_places(1, 3).num_steps(), 1U);
  ASSERT_TRUE(BeginEpoch(1, 2).ok());
  EXPECT_EQ(await_places(2, 0).num_steps(), 1U) << "a new epoch shows nothing";
}

TEST_F(WorkerServiceTest, ARefusedOrRepeatedStepIsNotCounted) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  const StepPlan first = Prefill(1, 1, {4, 5, 6});
  ASSERT_TRUE(steps.Exchange(first).ok());
  ASSERT_TRUE(steps.Exchange(first).ok());
  StepPlan bad = Decode(1, 1, 2);
  bad.slices[0].handle = 3;  // of no sequence
  ASSERT_FALSE(steps.Exchange(bad).ok());

  Watcher watcher(*stub_);
  const v1::WatchReport report = watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);

  EXPECT_EQ(report.num_steps(), 1U);
  EXPECT_EQ(report.step_id(), 1U);
}

TEST_F(WorkerServiceTest, StoppingEndsWatches) {
  Watcher watcher(*stub_);
  watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);

  server_->Shutdown();

  EXPECT_EQ(ReasonOf(watcher.WaitForEnd()), "SHUTTING_DOWN");
}

TEST_F(WorkerServiceTest, AWatcherThatLeavesMakesRoomForAnother) {
  // More in all than may watch at once, and than one connection carries.
  for (size_t i = 0; i <= WorkerReporter::kMaxCalls; ++i) {
    Watcher watcher(*stub_);
    watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);
  }
}

TEST_F(WorkerServiceTest, TooManyWatchersAreRefused) {
  constexpr size_t kCallsPerConnection = 8;
  std::vector<std::unique_ptr<Stub>> stubs;
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (size_t i = 0; i < WorkerReporter::kMaxCalls; ++i) {
    if (i % kCallsPerConnection == 0) {
      stubs.push_back(NewStub());
    }
    watchers.push_back(std::make_unique<Watcher>(*stubs.back()));
    watchers.back()->WaitForPhase(v1::WORKER_PHASE_IDLE);
  }

  Watcher refused(*stub_);

  EXPECT_EQ(ReasonOf(refused.WaitForEnd()), "QUEUE_FULL");
}

}  // namespace
}  // namespace quire
