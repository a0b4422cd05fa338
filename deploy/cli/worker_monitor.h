// WorkerMonitor follows one worker process through its stream of reports (Watch). If a stream ends,
// or the worker does not answer yet, the stream is opened again over a new connection.
//
// Thread safety: one caller at a time. Only the destructor blocks: it waits until gRPC has ended
//                the canceled stream. This needs no answer from the worker.
#ifndef QUIRE_DEPLOY_CLI_WORKER_MONITOR_H_
#define QUIRE_DEPLOY_CLI_WORKER_MONITOR_H_

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"

#include "proto/v1/worker.pb.h"

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/wire/address.h"
#include "common/wire/watch_stream.h"

namespace quire {

class WorkerMonitor {
 public:
  explicit WorkerMonitor(Address address) : address_(std::move(address)) {}
  ~WorkerMonitor();
  WorkerMonitor(const WorkerMonitor&) = delete;
  WorkerMonitor& operator=(const WorkerMonitor&) = delete;

  // Returns the newest report if one has come since the last call, else nullopt. Call a few times a
  // second.
  std::optional<v1::WatchReport> Poll(Instant now);

 private:
  void Open();

  const Address address_;
  Instant open_at_ = 0;
  std::unique_ptr<WatchStream> stream_;
  Mutex mutex_;
  CondVar ended_;  // notified under mutex_
  std::optional<v1::WatchReport> report_ ABSL_GUARDED_BY(mutex_);
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;  // true if the stream has ended
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_WORKER_MONITOR_H_
