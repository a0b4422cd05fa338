// WorkerReporter is a thread that reads the worker's progress four times a second. It reports the
// progress to all Watch calls and ends the process if the executor is stuck (StuckDetector). While
// one of the calls belongs to the worker's holder (SchedulerClaim), the reporter records in each
// round that the holder is connected.
//
// Thread safety: all methods may be called from any thread.
// Cost:          encodes one report per round for all calls.
#ifndef QUIRE_WORKER_RPC_WORKER_REPORTER_H_
#define QUIRE_WORKER_RPC_WORKER_REPORTER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/rpc/stuck_detector.h"
#include "worker/rpc/watch_call.h"
#include "worker/rpc/worker_progress.h"

namespace quire {

class WorkerReporter {
 public:
  static constexpr std::chrono::milliseconds kInterval{250};
  // Upper bound on open Watch calls. A scheduler, its standbys and a supervisor need far fewer,
  // even with calls left over from earlier schedulers.
  static constexpr size_t kMaxCalls = 64;
  // Upper bound on the time between two observations (Look) in a live worker. The usual time is
  // kInterval.
  static constexpr Instant kMaxBlindness = 5 * kNanosPerSecond;

  // The progress must outlive the object.
  explicit WorkerReporter(WorkerProgress& progress);
  // Calls Stop.
  ~WorkerReporter();
  WorkerReporter(const WorkerReporter&) = delete;
  WorkerReporter& operator=(const WorkerReporter&) = delete;

  // Returns a call that gets its first report at once. The call ends with `status` if `status` is
  // not OK; with RESOURCE_EXHAUSTED, reason QUEUE_FULL, if kMaxCalls calls are open; and with
  // UNAVAILABLE, reason SHUTTING_DOWN, on Stop. scheduler_incarnation: see WatchCall::Start.
  std::shared_ptr<WatchCall> Watch(uint64_t scheduler_incarnation, absl::Status status);

  // Sends the next report at once instead of at the end of the interval. Call it after a change
  // that a peer waits for.
  void ReportNow();

  // The reporter's thread calls `callback` after each observation. Replaces an earlier callback.
  void OnLook(std::function<void()> callback);

  void Stop();

  // Returns false in two cases: the executor has work, and has made no progress in it for longer
  // than any work takes (StuckDetector::stands_still); or the reporter has made no observation for
  // kMaxBlindness. A rank that waits for another rank is live.
  bool is_live() const;

 private:
  // Adds a call that gets reports. Errors: those with which Watch ends a call.
  absl::Status Add(const std::shared_ptr<WatchCall>& call);
  void Loop();
  // Waits for one interval, or for ReportNow. Returns true if the thread must stop.
  bool WaitOrStop();
  // Returns the open calls.
  std::vector<std::shared_ptr<WatchCall>> Calls();
  std::function<void()> OnLook();
  void Look(const WorkerProgress::State& state);

  WorkerProgress& progress_;
  StuckDetector stuck_detector_;  // used by thread_ only
  std::atomic<bool> stands_still_{false};
  std::atomic<Instant> last_look_;

  Mutex mutex_;
  CondVar changed_;  // signaled when is_stopping_ or has_news_ is set
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_news_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<WatchCall>> calls_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_look_ ABSL_GUARDED_BY(mutex_) = [] {};

  std::thread thread_;  // last member: the thread uses the members above
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WORKER_REPORTER_H_
