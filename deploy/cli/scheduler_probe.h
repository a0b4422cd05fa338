// SchedulerProbe asks a scheduler every second whether its loop turns: the service "liveness" of
// grpc.health.v1, on the public address. The HTTP port would not do: its few threads can all be
// held by idle connections.
//
// Thread safety: one caller at a time. Nothing blocks, except that the destructor waits for the
//                library to give up the call, which takes no answer of the scheduler.
#ifndef QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
#define QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_

#include <condition_variable>
#include <memory>
#include <mutex>

#include <grpcpp/channel.h>

#include "common/base/clock.h"
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
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;   // guarded by mutex_: the call
  bool is_serving_ = false;  // guarded by mutex_: its answer
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
