// StateAnswers answers GetState. A call that comes within StateCalls::kIntervalNs after the last
// snapshot of the loop (LoopState) is answered from that snapshot, on the thread of the call. A
// later call waits for the next snapshot: then the loop's thread builds one message for all calls
// that wait.
//
// Thread safety: safe from any thread. Waiting calls are answered on the loop's thread, so each
//                Answer must be quick, and at most kMaxWaiting calls wait.
// Cost:          the loop makes one message and at most kMaxWaiting answers per kIntervalNs, at any
//                load.
#ifndef QUIRE_SCHEDULER_RPC_STATE_ANSWERS_H_
#define QUIRE_SCHEDULER_RPC_STATE_ANSWERS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include <grpcpp/support/byte_buffer.h>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "scheduler/loop/inbox.h"
#include "scheduler/loop/serving_state.h"
#include "scheduler/rpc/served_model.h"

namespace quire {

class StateAnswers {
 public:
  static constexpr size_t kMaxWaiting = 32;

  using Answer = std::function<void(const grpc::ByteBuffer& message)>;

  // All arguments must outlive this object. The loop that reads the inbox must end before this
  // object is destroyed.
  StateAnswers(const ServedModel* model, Inbox* inbox, const ServingState* state)
      : model_(*model), inbox_(*inbox), state_(*state) {}

  // Calls `answer` once, now or later, with a GetStateResponse of less than 64 KiB. If kMaxWaiting
  // calls wait already, answers at once from the last snapshot (LoopState), however old it is. If
  // there is no snapshot yet, that answer has no steps and no map.
  void Get(Instant now, Answer answer);

 private:
  void AskLoop();
  void OnMoment(const std::shared_ptr<const LoopState>& moment);

  const ServedModel& model_;
  Inbox& inbox_;
  const ServingState& state_;
  Mutex mutex_;
  std::shared_ptr<const LoopState> moment_ ABSL_GUARDED_BY(mutex_);  // last snapshot, or null
  std::vector<Answer> waiting_ ABSL_GUARDED_BY(mutex_);  // if not empty, a GetStateCall is open
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_STATE_ANSWERS_H_
