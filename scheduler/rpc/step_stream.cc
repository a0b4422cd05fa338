#include "scheduler/rpc/step_stream.h"

#include <utility>

#include "common/wire/grpc_status.h"

namespace quire {

StepStream::StepStream(const std::shared_ptr<grpc::Channel>& channel, Callbacks callbacks)
    : stub_(channel), callbacks_(std::move(callbacks)) {
  stub_.PrepareBidiStreamingCall(&context_, "/quire.v1.WorkerService/Steps", {}, this);
}

std::shared_ptr<StepStream> StepStream::Start(const std::shared_ptr<grpc::Channel>& channel,
                                              Callbacks callbacks) {
  std::shared_ptr<StepStream> stream(new StepStream(channel, std::move(callbacks)));
  stream->self_ = stream;
  stream->AddHold();
  stream->StartRead(&stream->response_);
  stream->StartCall();
  return stream;
}

void StepStream::Send(grpc::ByteBuffer request) {
  absl::MutexLock lock(&mutex_);
  if (!has_hold_) {
    return;  // the call has failed; on_end reports it
  }
  waiting_.Swap(&request);
  has_waiting_ = true;
  if (!is_writing_) {
    StartWriteLocked();
  }
}

void StepStream::StartWriteLocked() {
  writing_.Swap(&waiting_);
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
  // On return, first this object is destroyed, then the objects that the callbacks hold.
  const Callbacks callbacks = std::move(callbacks_);
  const std::shared_ptr<StepStream> self = std::move(self_);
  absl::Status end = FromGrpcStatus(status);
  callbacks.on_end(end.ok() ? absl::UnavailableError("worker: ended the stream of steps")
                            : std::move(end));
}

}  // namespace quire
