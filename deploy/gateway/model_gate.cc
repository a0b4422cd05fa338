#include "deploy/gateway/model_gate.h"

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

absl::Status Loading() {
  return Error(absl::StatusCode::kUnavailable, "LOADING", "server: the model is being loaded");
}

}  // namespace

void ModelGate::Open(std::unique_ptr<ChatModel> model) {
  model_ = std::move(model);
  is_open_ = true;
  const MutexLock lock(mutex_);
  changed_.NotifyAll();
}

void ModelGate::Close() {
  const MutexLock lock(mutex_);
  is_closed_ = true;
  changed_.NotifyAll();
}

absl::StatusOr<ModelGate::Served> ModelGate::Enter() {
  if (!is_open_) {
    const MutexLock lock(mutex_);
    while (!is_open_ && !is_closed_) {
      changed_.Wait(mutex_);
    }
    if (!is_open_) {
      return Loading();
    }
  }
  const SchedulerWatch::State state = watch_.Get();
  QUIRE_RETURN_IF_ERROR(Check(state));
  return Served{.model = model_.get(), .info = state.info};
}

absl::Status ModelGate::Check(const SchedulerWatch::State& state) const {
  if (!state.was_ready) {
    return Loading();
  }
  if (state.info->tokenizer_digest() != model_->tokenizer_digest()) {
    return Error(absl::StatusCode::kUnavailable,
                 "MODEL_FILES",
                 "server: the gateway's --model has another tokenizer than the scheduler's");
  }
  return absl::OkStatus();
}

bool ModelGate::is_ready() const {
  const SchedulerWatch::State state = watch_.Get();
  return is_open_ && state.is_ready && Check(state).ok();
}

absl::Status CheckModelName(const std::string& name, const v1::GetServerInfoResponse& info) {
  if (name.empty() || std::ranges::count(info.model_names(), name) > 0) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kNotFound, "MODEL", "model: is not served here");
}

}  // namespace quire
