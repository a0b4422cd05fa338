#include "worker/rpc/worker_reporter.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"
#include "worker/rpc/message_reader.h"

namespace quire {
namespace {

absl::Status ShuttingDown() {
  return Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "worker: is shutting down");
}

absl::Status TooManyWatch() {
  return Error(
      absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "worker: too many Watch calls are open");
}

}  // namespace

WorkerReporter::WorkerReporter(WorkerProgress& progress)
    : progress_(progress), last_look_(SteadyNow()), thread_([this] { Loop(); }) {}

WorkerReporter::~WorkerReporter() { Stop(); }

std::shared_ptr<WatchCall> WorkerReporter::Watch(uint64_t scheduler_incarnation,
                                                 absl::Status status) {
  std::shared_ptr<WatchCall> call = WatchCall::Start(scheduler_incarnation);
  if (status.ok()) {
    status = Add(call);
  }
  if (status.ok()) {
    progress_.Hear(scheduler_incarnation);
    call->Send(WriteMessage(progress_.Read().report));
  } else {
    call->End(status);
  }
  return call;
}

absl::Status WorkerReporter::Add(const std::shared_ptr<WatchCall>& call) {
  const MutexLock lock(mutex_);
  std::erase_if(calls_, [](const auto& other) { return other->has_ended(); });
  if (is_stopping_) {
    return ShuttingDown();
  }
  if (calls_.size() == kMaxCalls) {
    return TooManyWatch();
  }
  calls_.push_back(call);
  return absl::OkStatus();
}

void WorkerReporter::ReportNow() {
  {
    const MutexLock lock(mutex_);
    has_news_ = true;
  }
  changed_.NotifyAll();
}

void WorkerReporter::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) {
    thread_.join();
  }
  for (const std::shared_ptr<WatchCall>& call : Calls()) {
    call->End(ShuttingDown());
  }
}

void WorkerReporter::Loop() {
  while (!WaitOrStop()) {
    for (const std::shared_ptr<WatchCall>& call : Calls()) {
      progress_.Hear(call->scheduler_incarnation());
    }
    const WorkerProgress::State state = progress_.Read();
    Look(state);
    OnLook()();
    const grpc::ByteBuffer report = WriteMessage(state.report);
    for (const std::shared_ptr<WatchCall>& call : Calls()) {
      call->Send(report);
    }
  }
}

bool WorkerReporter::WaitOrStop() {
  const Instant deadline = SteadyNow() + kInterval.count() * kNanosPerMilli;
  const MutexLock lock(mutex_);
  while (!is_stopping_ && !has_news_ && changed_.WaitUntil(mutex_, deadline)) {
  }
  has_news_ = false;
  return is_stopping_;
}

std::vector<std::shared_ptr<WatchCall>> WorkerReporter::Calls() {
  const MutexLock lock(mutex_);
  std::erase_if(calls_, [](const auto& call) { return call->has_ended(); });
  return calls_;
}

void WorkerReporter::OnLook(std::function<void()> callback) {
  const MutexLock lock(mutex_);
  on_look_ = std::move(callback);
}

std::function<void()> WorkerReporter::OnLook() {
  const MutexLock lock(mutex_);
  return on_look_;
}

bool WorkerReporter::is_live() const {
  return !stands_still_.load(std::memory_order_relaxed) &&
         SteadyNow() - last_look_.load(std::memory_order_relaxed) < kMaxBlindness;
}

// Observes the state, and ends the process if the executor is stuck.
void WorkerReporter::Look(const WorkerProgress::State& state) {
  const Instant now = SteadyNow();
  const bool is_stuck = stuck_detector_.Observe(now, state);
  stands_still_.store(stuck_detector_.stands_still() && !state.report.has_waits_for_rank(),
                      std::memory_order_relaxed);
  last_look_.store(now, std::memory_order_relaxed);
  if (!is_stuck) {
    return;
  }
  LogError("the executor is stuck; the worker ends",
           {{"epoch", absl::StrCat(state.report.group_epoch())},
            {"step", absl::StrCat(state.report.step_id())},
            {"phase", v1::WorkerPhase_Name(state.report.phase())}});
  // Skips destructors: they would wait for the thread that hangs.
  ExitNow(kExitStuck);
}

}  // namespace quire
