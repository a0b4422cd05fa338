#include "worker/rpc/steps_call.h"

#include <utility>

#include "common/base/check.h"
#include "common/wire/grpc_status.h"

namespace quire {

std::shared_ptr<StepsCall> StepsCall::Start(Handler handler) {
  std::shared_ptr<StepsCall> stream(new StepsCall(std::move(handler)));
  stream->self_ = stream;
  stream->StartRead(&stream->request_);
  return stream;
}

void StepsCall::Answer(grpc::ByteBuffer response) {
  Action action;
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.has_value() || is_finished_) {
      return;
    }
    --num_unanswered_;
    responses_.push_back(std::move(response));
    action = Next(/*in_reaction=*/false);
  }
  Do(action);
}

void StepsCall::Fail(const absl::Status& status) {
  QUIRE_CHECK(!status.ok());
  Action action;
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.has_value() || is_finished_) {
      return;
    }
    failure_ = ToGrpcStatus(status);
    action = Next(/*in_reaction=*/false);
  }
  Do(action);
}

bool StepsCall::has_failed() const {
  absl::MutexLock lock(&mutex_);
  return failure_.has_value();
}

void StepsCall::OnReadDone(bool ok) {
  std::shared_ptr<StepsCall> self = self_;
  bool is_request = false;
  grpc::ByteBuffer request;
  Action action;
  {
    absl::MutexLock lock(&mutex_);
    is_reading_ = false;
    is_half_closed_ = is_half_closed_ || !ok;
    is_request = ok && !failure_.has_value();
    if (is_request) {
      ++num_unanswered_;
      request.Swap(&request_);
    }
    action = Next(/*in_reaction=*/true);
  }
  if (is_request) {
    handler_(self, request);
  }
  Do(action);
}

void StepsCall::OnWriteDone(bool ok) {
  std::shared_ptr<StepsCall> self = self_;
  Action action;
  {
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
    is_broken_ = is_broken_ || !ok;
    responses_.pop_front();
    action = Next(/*in_reaction=*/true);
  }
  Do(action);
}

void StepsCall::OnCancel() {
  std::shared_ptr<StepsCall> self = self_;
  Action action;
  {
    absl::MutexLock lock(&mutex_);
    is_broken_ = true;
    action = Next(/*in_reaction=*/true);
  }
  Do(action);
}

void StepsCall::OnDone() {
  std::shared_ptr<StepsCall> last = std::move(self_);  // on return, `last` may destroy this object
}

StepsCall::Action StepsCall::Next(bool in_reaction) {
  Action action;
  if (is_finished_ || is_writing_) {
    return action;  // OnWriteDone calls Next again
  }
  bool has_response = !responses_.empty() && !is_broken_;
  bool is_complete = is_half_closed_ && num_unanswered_ == 0;
  if (has_response) {
    is_writing_ = true;
    action.write = &responses_.front();
  } else if (failure_.has_value() || is_broken_ || is_complete) {
    is_finished_ = true;
    action.finish = failure_.value_or(is_broken_ ? grpc::Status::CANCELLED : grpc::Status::OK);
    return action;
  }
  if (in_reaction && !is_reading_ && !is_half_closed_ && !failure_.has_value() &&
      num_unanswered_ < kMaxUnanswered) {
    is_reading_ = true;
    action.read = true;
  }
  return action;
}

void StepsCall::Do(const Action& action) {
  if (action.read) {
    StartRead(&request_);
  }
  if (action.write != nullptr) {
    StartWrite(action.write);
  }
  if (action.finish.has_value()) {
    Finish(*action.finish);
  }
}

}  // namespace quire
