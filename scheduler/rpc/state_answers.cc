#include "scheduler/rpc/state_answers.h"

#include <utility>

#include "scheduler/rpc/state_message.h"
#include "scheduler/rpc/wire_message.h"

namespace quire {

void StateAnswers::Get(Instant now, Answer answer) {
  std::shared_ptr<const LoopState> moment;
  {
    const MutexLock lock(mutex_);
    const bool is_new = moment_ != nullptr && now - moment_->taken_at < StateCalls::kIntervalNs;
    if (!is_new && waiting_.size() < kMaxWaiting) {
      waiting_.push_back(std::move(answer));
      if (waiting_.size() == 1) {
        AskLoop();
      }
      return;
    }
    moment = moment_;
  }
  answer(SerializeMessage(moment == nullptr ? StateMessage(model_, state_.Get())
                                            : StateMessage(model_, state_.Get(), *moment)));
}

void StateAnswers::AskLoop() {
  inbox_.Post(GetStateCall{
      .answer = [this](const std::shared_ptr<const LoopState>& next) { OnMoment(next); }});
}

void StateAnswers::OnMoment(const std::shared_ptr<const LoopState>& moment) {
  std::vector<Answer> waiting;
  {
    const MutexLock lock(mutex_);
    moment_ = moment;
    waiting = std::exchange(waiting_, {});
  }
  const grpc::ByteBuffer message = SerializeMessage(StateMessage(model_, state_.Get(), *moment));
  for (const Answer& answer : waiting) {
    answer(message);
  }
}

}  // namespace quire
