// SchedulerWatch asks the schedulers for the served model and whether they are ready: twice a
// second, and 20 times a second while none is ready. Until a scheduler has been ready once, the
// gateway refuses requests at once. Afterwards requests wait while no scheduler is ready
// (AsyncResumingClient).
//
// Thread safety: any thread. The watch's own thread asks.
#ifndef QUIRE_DEPLOY_GATEWAY_SCHEDULER_WATCH_H_
#define QUIRE_DEPLOY_GATEWAY_SCHEDULER_WATCH_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include <grpcpp/channel.h>

#include "proto/v1/generation.grpc.pb.h"

#include "common/base/mutex.h"

namespace quire {

class SchedulerWatch {
 public:
  struct State {
    // The last answer; null before the first one. A ready scheduler's answer is preferred.
    std::shared_ptr<const v1::GetServerInfoResponse> info;
    bool is_ready = false;   // a scheduler was ready at the last question
    bool was_ready = false;  // a scheduler has been ready since the gateway's start
  };

  SchedulerWatch(const std::vector<std::shared_ptr<grpc::Channel>>& schedulers,
                 std::string api_key);
  ~SchedulerWatch() { Stop(); }
  SchedulerWatch(const SchedulerWatch&) = delete;
  SchedulerWatch& operator=(const SchedulerWatch&) = delete;

  // Starts the thread that asks the schedulers. on_turn: called after each round of questions, on
  // the watch's thread; must not wait. Call once.
  void Start(std::function<void()> on_turn);
  void Stop();

  State Get() const;

  // Waits until the schedulers have been asked once, at most 5 s.
  void AwaitFirst();

 private:
  void Run(const std::function<void()>& on_turn);
  void Ask();

  std::vector<std::unique_ptr<v1::GenerationService::Stub>> schedulers_;
  const std::string api_key_;
  mutable Mutex mutex_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_);
  bool has_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_SCHEDULER_WATCH_H_
