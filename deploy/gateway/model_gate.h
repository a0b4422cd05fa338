// ModelGate admits requests. A request first waits until the gateway has loaded the model's files.
// Then it is refused if no scheduler has been ready yet, or if the schedulers have another
// tokenizer than the gateway.
//
// Thread safety: any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_MODEL_GATE_H_
#define QUIRE_DEPLOY_GATEWAY_MODEL_GATE_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"

#include "proto/v1/generation.pb.h"

#include "common/base/mutex.h"
#include "deploy/gateway/chat_model.h"
#include "deploy/gateway/scheduler_watch.h"

namespace quire {

class ModelGate {
 public:
  // The watch must outlive this object.
  explicit ModelGate(SchedulerWatch& watch) : watch_(watch) {}

  // Lets requests pass. Call once.
  void Open(std::unique_ptr<ChatModel> model);
  // Refuses the requests that wait for Open. Call before the destructor.
  void Close();

  struct Served {
    const ChatModel* model = nullptr;
    std::shared_ptr<const v1::GetServerInfoResponse> info;
  };
  // Waits for Open. Errors: kUnavailable LOADING until a scheduler has been ready, or if Close came
  // before Open; kUnavailable MODEL_FILES if the schedulers' tokenizer is not the gateway's.
  absl::StatusOr<Served> Enter();

  // True if Enter would succeed at once, and a scheduler is ready now.
  bool is_ready() const;

 private:
  absl::Status Check(const SchedulerWatch::State& state) const;

  SchedulerWatch& watch_;
  std::unique_ptr<ChatModel> model_;  // set once, before is_open_
  std::atomic<bool> is_open_ = false;
  Mutex mutex_;
  CondVar changed_;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Returns kNotFound MODEL unless the name is empty or is a name of the served model.
absl::Status CheckModelName(const std::string& name, const v1::GetServerInfoResponse& info);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_MODEL_GATE_H_
