#include "deploy/cli/worker_monitor.h"

#include <utility>

#include "common/wire/channel.h"

namespace quire {
namespace {

// Minimum time from opening a stream to opening the next one. The first stream often fails, because
// the worker does not listen yet. The time is short, because ranks wait for rank 0's first report.
constexpr int64_t kReopenPauseNs = 50 * kNanosPerMilli;

}  // namespace

WorkerMonitor::~WorkerMonitor() {
  if (stream_ == nullptr) {
    return;
  }
  stream_->Cancel();
  const MutexLock lock(mutex_);
  while (!has_ended_) {
    ended_.Wait(mutex_);
  }
}

std::optional<v1::WatchReport> WorkerMonitor::Poll(Instant now) {
  MutexLock lock(mutex_);
  if (std::exchange(has_ended_, false)) {
    stream_.reset();
  }
  std::optional<v1::WatchReport> report = std::exchange(report_, std::nullopt);
  lock.Unlock();
  if (stream_ == nullptr && now >= open_at_) {
    open_at_ = now + kReopenPauseNs;
    Open();
  }
  return report;
}

void WorkerMonitor::Open() {
  const auto stub = v1::WorkerService::NewStub(DialWorker(address_));
  stream_ = std::make_unique<WatchStream>(
      *stub,
      /*scheduler_incarnation=*/0,
      WatchStream::Callbacks{.on_report =
                                 [this](const v1::WatchReport& report) {
                                   const MutexLock lock(mutex_);
                                   report_ = report;
                                 },
                             .on_end =
                                 [this](const absl::Status& /*status*/) {
                                   // Notified under the lock, else the waiting destructor could end
                                   // before NotifyOne is called.
                                   const MutexLock lock(mutex_);
                                   has_ended_ = true;
                                   ended_.NotifyOne();
                                 }});
}

}  // namespace quire
