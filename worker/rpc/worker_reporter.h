// WorkerReporter is the thread that looks at the worker's progress four times a second: it reports
// it to all who watch, hears by their calls which schedulers are there, and ends the process when
// the executor is stuck (StuckDetector).
//
// Thread safety: all methods may be called from any thread.
// Cost:          one report is encoded a round, however many watch.
#ifndef QUIRE_WORKER_RPC_WORKER_REPORTER_H_
#define QUIRE_WORKER_RPC_WORKER_REPORTER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
  // A scheduler, a supervisor, and what is left of those before them.
  static constexpr size_t kMaxCalls = 64;
  static constexpr Instant kMaxBlindness = 5 * kNanosPerSecond;

  // The progress must outlive the object.
  explicit WorkerReporter(WorkerProgress& progress);
  // Stops.
  ~WorkerReporter();
  WorkerReporter(const WorkerReporter&) = delete;
  WorkerReporter& operator=(const WorkerReporter&) = delete;

  // A call that gets the first report at once, or ends with this status if it is not OK. It ends
  // with RESOURCE_EXHAUSTED, reason QUEUE_FULL, when too many watch, and with UNAVAILABLE, reason
  // SHUTTING_DOWN, on Stop.
  // scheduler_incarnation: of the scheduler that watches; 0: it is none.
  std::shared_ptr<WatchCall> Watch(uint64_t scheduler_incarnation, absl::Status status);

  // The next report leaves now, not when its time has come: whoever waits for the news waits no
  // longer than it takes to tell.
  void ReportNow();

  void Stop();

  // False: the executor has stood still for longer than any work takes, whether or not somebody
  // waits for it, or nobody has looked for kMaxBlindness. A rank that waits for another one is
  // live.
  bool is_live() const;

 private:
  // Among those that get reports. Errors: as Watch.
  absl::Status Add(const std::shared_ptr<WatchCall>& call);
  void Loop();
  // Waits for one interval, or for news. True: it is to stop.
  bool WaitOrStop();
  // Calls that go on.
  std::vector<std::shared_ptr<WatchCall>> Calls();
  void Look(const WorkerProgress::State& state);

  WorkerProgress& progress_;
  StuckDetector stuck_detector_;  // of the thread
  std::atomic<bool> stands_still_{false};
  std::atomic<Instant> last_look_;

  Mutex mutex_;
  CondVar changed_;  // one of the two below
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_news_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<WatchCall>> calls_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all above
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WORKER_REPORTER_H_
