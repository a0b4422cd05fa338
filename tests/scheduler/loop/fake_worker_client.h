// FakeWorkerClient stands for the connection to a worker group, with a FakeWorker behind it. A test
// begins epochs, answers steps and loses the group at its own times, or calls RunByItself.
//
// Thread safety: not thread-safe, except LoseGroupSoon.
#ifndef QUIRE_TESTS_SCHEDULER_LOOP_FAKE_WORKER_CLIENT_H_
#define QUIRE_TESTS_SCHEDULER_LOOP_FAKE_WORKER_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "scheduler/loop/inbox.h"
#include "scheduler/loop/worker_client.h"
#include "tests/support/fake_worker.h"

namespace quire {

class FakeWorkerClient : public WorkerClient {
 public:
  static constexpr int64_t kBlockBytes = 1000;
  static constexpr char kFingerprint[] = "fake";

  FakeWorkerClient(Inbox* inbox, const StepLimits& limits) : inbox_(inbox), limits_(limits) {}

  // Answers every step at once, and begins a new epoch after every loss.
  void RunByItself() {
    runs_by_itself_ = true;
    BeginEpoch();
  }

  // The workers of the next epoch have this context.
  void SetMaxModelLen(int32_t max_model_len) { limits_.max_model_len = max_model_len; }
  // The workers of the next epoch have a host pool of so many blocks.
  void SetNumHostBlocks(int32_t num_host_blocks) { limits_.num_host_blocks = num_host_blocks; }

  // Begins an epoch with new workers. after_crash: whether the workers before, if any, have
  // crashed.
  void BeginEpoch(bool after_crash = true) {
    worker_ = std::make_unique<FakeWorker>(limits_);
    unanswered_.reset();
    GroupReady ready;
    ready.scheduler_incarnation = 1;
    ready.group_epoch = ++group_epoch_;
    ready.limits = limits_;
    ready.numerics = kFingerprint;
    ready.block_bytes = kBlockBytes * static_cast<int64_t>(group_epoch_);  // each its own
    ready.after_crash = after_crash && group_epoch_ > 1;
    inbox_->Post(std::move(ready));
  }

  // Computes the step that was sent. REQUIRES: it is unanswered.
  StepResult Compute() {
    QUIRE_CHECK(unanswered_.has_value());
    auto result = worker_->Execute(*unanswered_);
    QUIRE_CHECK(result.ok());
    unanswered_.reset();
    return *std::move(result);
  }
  void Answer() { inbox_->Post(StepReply{Compute()}); }

  void LoseGroup() {
    unanswered_.reset();
    inbox_->Post(GroupLost{group_epoch_, absl::UnavailableError("the worker died")});
  }
  // The next step that is sent is computed, and then its worker is lost before it answers. From any
  // thread.
  void LoseGroupSoon() { lose_soon_ = true; }

  void SendStep(const StepPlan& plan) override {
    QUIRE_CHECK(!unanswered_.has_value());
    unanswered_ = plan;
    ++num_steps_;
    if (!runs_by_itself_) {
      return;
    }
    if (lose_soon_.exchange(false)) {
      Compute();  // its answer never arrives
      LoseGroup();
    } else {
      Answer();
    }
  }
  void AbandonEpoch(uint64_t group_epoch) override {
    abandoned_.push_back(group_epoch);
    unanswered_.reset();
    if (runs_by_itself_) {
      BeginEpoch();
    }
  }

  const std::optional<StepPlan>& unanswered() const { return unanswered_; }
  const std::vector<uint64_t>& abandoned() const { return abandoned_; }
  int num_steps() const { return num_steps_; }

 private:
  Inbox* const inbox_;
  StepLimits limits_;
  std::unique_ptr<FakeWorker> worker_;
  uint64_t group_epoch_ = 0;
  std::optional<StepPlan> unanswered_;
  std::vector<uint64_t> abandoned_;
  int num_steps_ = 0;
  bool runs_by_itself_ = false;
  // Sequentially consistent, because it is one flag that is rarely used.
  std::atomic<bool> lose_soon_ = false;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_LOOP_FAKE_WORKER_CLIENT_H_
