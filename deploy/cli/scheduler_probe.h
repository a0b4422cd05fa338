// SchedulerProbe asks a scheduler every second whether its loop turns: the service "liveness" of
// grpc.health.v1, on the public address. The HTTP port would not do: its few threads can all be
// held by idle connections.
//
// Thread safety: one caller at a time. Nothing blocks, except that the destructor waits for the
//                library to give up the call, which takes no answer of the scheduler.
#ifndef QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
#define QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include <grpcpp/channel.h>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/wire/address.h"

namespace quire {

class SchedulerProbe {
 public:
  explicit SchedulerProbe(const Address& address);
  ~SchedulerProbe();
  SchedulerProbe(const SchedulerProbe&) = delete;
  SchedulerProbe& operator=(const SchedulerProbe&) = delete;

  // True if "serving" was answered since the last call. To be called a few times a second.
  bool Poll(Instant now);

 private:
  struct Call;

  void Ask();

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Call> call_;  // null: none
  Instant ask_at_ = 0;
  Mutex mutex_;
  CondVar ended_;                                    // notified under mutex_
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;   // the call
  bool is_serving_ ABSL_GUARDED_BY(mutex_) = false;  // its answer
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
