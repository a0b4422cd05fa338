#include "scheduler/rpc/state_page.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include <google/protobuf/util/json_util.h>

#include "common/base/mutex.h"
#include "scheduler/rpc/state_message.h"

namespace quire {

class StatePage::Latest {
 public:
  std::shared_ptr<const LoopState> Get() const {
    const MutexLock lock(mutex_);
    return state_;
  }

  // Returns true if the caller must ask the loop. At most one GetStateCall is open at a time.
  bool BeginAsking() {
    const MutexLock lock(mutex_);
    return !std::exchange(is_asking_, true);
  }

  void Set(std::shared_ptr<const LoopState> state) {
    const MutexLock lock(mutex_);
    state_ = std::move(state);
    is_asking_ = false;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const LoopState> state_ ABSL_GUARDED_BY(mutex_);
  bool is_asking_ ABSL_GUARDED_BY(mutex_) = false;
};

StatePage::StatePage(const ServedModel* model, Inbox* inbox, const ServingState* state)
    : model_(model), inbox_(inbox), state_(state), latest_(std::make_shared<Latest>()) {}

std::string StatePage::Json(Instant now) {
  const std::shared_ptr<const LoopState> state = latest_->Get();
  if (latest_->BeginAsking()) {
    inbox_->Post(
        GetStateCall{.answer = [latest = latest_](const std::shared_ptr<const LoopState>& answer) {
          latest->Set(answer);
        }});
  }
  const bool is_new = state != nullptr && now - state->taken_at < kMaxAgeNs;
  const v1::GetStateResponse message =
      is_new ? StateMessage(*model_, state_->Get(), *state) : StateMessage(*model_, state_->Get());
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // MessageToJsonString fails if a name that the operator sets, such as the model's, is not UTF-8.
  return MessageToJsonString(message, &json, options).ok() ? json : "{}";
}

}  // namespace quire
