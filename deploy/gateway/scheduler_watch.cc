#include "deploy/gateway/scheduler_watch.h"

#include <chrono>
#include <utility>

#include <grpcpp/client_context.h>

#include "common/base/clock.h"
#include "common/wire/api_key.h"

namespace quire {
namespace {

constexpr std::chrono::seconds kAskTimeout(2);
constexpr int64_t kAskIntervalNs = 500 * kNanosPerMilli;
// Asks more often while no scheduler is ready, because clients may already wait.
constexpr int64_t kFirstAskIntervalNs = 50 * kNanosPerMilli;
constexpr int64_t kMaxAwaitNs = 5 * kNanosPerSecond;

}  // namespace

SchedulerWatch::SchedulerWatch(const std::vector<std::shared_ptr<grpc::Channel>>& schedulers,
                               std::string api_key)
    : api_key_(std::move(api_key)) {
  for (const std::shared_ptr<grpc::Channel>& channel : schedulers) {
    schedulers_.push_back(v1::GenerationService::NewStub(channel));
  }
}

void SchedulerWatch::Start(std::function<void()> on_turn) {
  thread_ = std::thread([this, on_turn = std::move(on_turn)] { Run(on_turn); });
}

void SchedulerWatch::Stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

SchedulerWatch::State SchedulerWatch::Get() const {
  const MutexLock lock(mutex_);
  return state_;
}

void SchedulerWatch::AwaitFirst() {
  const Instant deadline = SteadyNow() + kMaxAwaitNs;
  const MutexLock lock(mutex_);
  while (!has_asked_ && !is_stopping_ && changed_.WaitUntil(mutex_, deadline)) {
  }
}

void SchedulerWatch::Run(const std::function<void()>& on_turn) {
  for (;;) {
    Ask();
    on_turn();
    const MutexLock lock(mutex_);
    const Instant next = SteadyNow() + (state_.is_ready ? kAskIntervalNs : kFirstAskIntervalNs);
    while (!is_stopping_ && changed_.WaitUntil(mutex_, next)) {
    }
    if (is_stopping_) {
      return;
    }
  }
}

// Asks one scheduler after the other, until one is ready.
void SchedulerWatch::Ask() {
  std::shared_ptr<v1::GetServerInfoResponse> info;
  bool is_ready = false;
  for (const auto& scheduler : schedulers_) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAskTimeout);
    if (!api_key_.empty()) {
      context.AddMetadata(kAuthorization, BearerOf(api_key_));
    }
    auto answer = std::make_shared<v1::GetServerInfoResponse>();
    if (!scheduler->GetServerInfo(&context, {}, answer.get()).ok()) {
      continue;
    }
    info = std::move(answer);
    is_ready = info->ready();
    if (is_ready) {
      break;
    }
  }
  const MutexLock lock(mutex_);
  if (info != nullptr) {
    state_.info = std::move(info);
  }
  state_.is_ready = is_ready;
  state_.was_ready |= is_ready;
  has_asked_ = true;
  changed_.NotifyAll();
}

}  // namespace quire
