// SchedulerProbe asks a scheduler every second whether its loop turns: the service "liveness" of
// grpc.health.v1, on the public address. The HTTP port would not do: its few threads can all be
// held by idle connections.
//
// Thread safety: one caller at a time. Nothing blocks.
#ifndef QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
#define QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_

#include <memory>

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

  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Call> call_;  // shared with the library until it has ended; null: none
  Instant ask_at_ = 0;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SCHEDULER_PROBE_H_
