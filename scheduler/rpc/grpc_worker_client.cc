#include "scheduler/rpc/grpc_worker_client.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/wire/step_codec.h"

namespace quire {
namespace {

// Broken connections end a call with these; a worker that refuses a step says something else.
bool IsTransportError(const absl::Status& status) {
  return ReasonOf(status).empty() &&
         (absl::IsUnavailable(status) || absl::IsCancelled(status) || absl::IsUnknown(status));
}

}  // namespace

GrpcWorkerClient::GrpcWorkerClient(Address address,
                                   const GroupSettings& settings,
                                   Inbox* inbox,
                                   GrpcWorkerClientTiming timing)
    : timing_(timing),
      inbox_(inbox),
      session_(std::move(address), settings),
      thread_([this] { Run(); }) {}

GrpcWorkerClient::~GrpcWorkerClient() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    if (stream_ != nullptr) {
      stream_->Cancel();
    }
  }
  session_.Cancel();
  thread_.join();
}

void GrpcWorkerClient::SendStep(const StepPlan& plan) {
  absl::MutexLock lock(&mutex_);
  EncodePlan(plan, DigestOf(plan), &request_);
  is_unanswered_ = true;
  if (stream_ != nullptr) {
    stream_->Send(request_);
  }
}

void GrpcWorkerClient::ResendStep() {
  absl::MutexLock lock(&mutex_);
  if (stream_ != nullptr) {
    stream_->Cancel();  // the thread opens another one and sends the step again
  }
}

void GrpcWorkerClient::AbandonEpoch(uint64_t group_epoch) {
  absl::MutexLock lock(&mutex_);
  abandoned_epoch_ = std::max(abandoned_epoch_, group_epoch);
  if (stream_ != nullptr && request_.group_epoch() <= group_epoch) {
    stream_->Cancel();
  }
}

void GrpcWorkerClient::Run() {
  uint64_t group_epoch = 0;
  absl::Duration backoff = timing_.min_backoff;
  while (!IsOver(0)) {
    absl::StatusOr<GroupReady> ready = session_.Begin(++group_epoch);
    if (!ready.ok()) {
      ReportFailure(ready.status());
      Pause(backoff);
      backoff = std::min(backoff * 2, timing_.max_backoff);
      continue;
    }
    backoff = timing_.min_backoff;
    last_failure_.clear();
    {
      absl::MutexLock lock(&mutex_);
      is_unanswered_ = false;
      request_.Clear();
      request_.set_group_epoch(group_epoch);
    }
    inbox_->Post(*std::move(ready));
    const absl::Status end = ServeEpoch(group_epoch);
    if (!end.ok()) {
      inbox_->Post(GroupLost{group_epoch, end});
    }
  }
}

absl::Status GrpcWorkerClient::ServeEpoch(uint64_t group_epoch) {
  absl::Time broken_at = absl::InfiniteFuture();
  for (;;) {
    const absl::Time opened_at = absl::Now();
    absl::Status end = ServeStream(group_epoch);
    if (IsOver(group_epoch)) {
      return absl::OkStatus();
    }
    {
      absl::MutexLock lock(&mutex_);
      const bool answered = std::exchange(answered_since_break_, false);
      if (answered || absl::Now() - opened_at >= timing_.lease) {
        broken_at = absl::InfiniteFuture();
      }
    }
    broken_at = std::min(broken_at, absl::Now());
    if (!IsTransportError(end) || absl::Now() - broken_at >= timing_.lease) {
      return end;
    }
    LogInfo("the stream of steps broke; opening another",
            {{"epoch", absl::StrCat(group_epoch)}, {"cause", end.ToString()}});
    Pause(timing_.mend_pause);
    session_.Redial();
  }
}

absl::Status GrpcWorkerClient::ServeStream(uint64_t group_epoch) {
  auto stream = std::make_unique<StepStream>(
      session_.stub(),
      StepStream::Callbacks{
          .on_response = [this](const v1::StepResponse& response) { OnResponse(response); },
          .on_end = [this](absl::Status status) { OnStreamEnd(std::move(status)); }});
  absl::MutexLock lock(&mutex_);
  stream_ = std::move(stream);
  if (is_stopping_ || abandoned_epoch_ >= group_epoch) {
    stream_->Cancel();
  } else if (is_unanswered_) {
    stream_->Send(request_);
  }
  const auto has_ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stream_end_.has_value();
  };
  mutex_.Await(absl::Condition(&has_ended));
  absl::Status end = *std::exchange(stream_end_, std::nullopt);
  stream_.reset();
  return end;
}

void GrpcWorkerClient::OnResponse(const v1::StepResponse& response) {
  absl::StatusOr<StepResult> result = DecodeResult(response);
  absl::MutexLock lock(&mutex_);
  if (!result.ok()) {
    LogError("a step was answered with nonsense", {{"cause", result.status().ToString()}});
    stream_->Cancel();  // the worker is asked again, until the step is overdue
    return;
  }
  is_unanswered_ = false;
  answered_since_break_ = true;
  inbox_->Post(StepReply{*std::move(result)});
}

void GrpcWorkerClient::OnStreamEnd(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  stream_end_ = std::move(status);
}

void GrpcWorkerClient::ReportFailure(const absl::Status& status) {
  std::string failure = status.ToString();
  if (failure != last_failure_ && !IsOver(0)) {
    LogWarning("worker not ready; trying on", {{"cause", failure}});
    last_failure_ = std::move(failure);
  }
}

void GrpcWorkerClient::Pause(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&is_stopping_), duration);
}

bool GrpcWorkerClient::IsOver(uint64_t group_epoch) {
  absl::MutexLock lock(&mutex_);
  return is_stopping_ || (group_epoch > 0 && abandoned_epoch_ >= group_epoch);
}

}  // namespace quire
