#include "scheduler/rpc/step_stream.h"

#include <utility>

#include "common/wire/grpc_status.h"

namespace quire {

StepStream::StepStream(v1::WorkerService::Stub& stub, Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  stub.async()->Steps(&context_, this);
  AddHold();
  StartRead(&response_);
  StartCall();
}

void StepStream::Send(const v1::StepRequest& request) {
  absl::MutexLock lock(&mutex_);
  if (!has_hold_) {
    return;  // the call has failed; on_end tells
  }
  waiting_ = request;
  has_waiting_ = true;
  if (!is_writing_) {
    StartWriteLocked();
  }
}

void StepStream::StartWriteLocked() {
  std::swap(writing_, waiting_);
  has_waiting_ = false;
  is_writing_ = true;
  StartWrite(&writing_);
}

void StepStream::Cancel() { context_.TryCancel(); }

void StepStream::OnReadDone(bool ok) {
  if (ok) {
    callbacks_.on_response(response_);
    StartRead(&response_);
    return;
  }
  absl::MutexLock lock(&mutex_);
  has_hold_ = false;
  RemoveHold();
}

void StepStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  is_writing_ = false;
  if (ok && has_waiting_ && has_hold_) {
    StartWriteLocked();
  }
}

void StepStream::OnDone(const grpc::Status& status) {
  // After this call returns the object may be gone: the callback is called last, from a copy.
  const std::function<void(absl::Status)> on_end = std::move(callbacks_.on_end);
  absl::Status end = FromGrpcStatus(status);
  on_end(end.ok() ? absl::UnavailableError("worker: ended the stream of steps") : std::move(end));
}

}  // namespace quire
