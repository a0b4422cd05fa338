// WorkerSession makes the acquaintance of a worker: Handshake, the comparison of what both sides
// have loaded, and BeginEpoch.
//
// Thread safety: one caller at a time, but for Cancel, which may come from any thread.
#ifndef QUIRE_SCHEDULER_RPC_WORKER_SESSION_H_
#define QUIRE_SCHEDULER_RPC_WORKER_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/client_context.h>

#include "proto/v1/worker.grpc.pb.h"

#include "common/model/dtype.h"
#include "common/model/model_config.h"
#include "common/wire/address.h"
#include "scheduler/loop/inbox.h"

namespace quire {

// What the scheduler wants of its workers.
struct GroupSettings {
  ModelConfig model;
  int32_t block_size_tokens = 16;
  std::optional<DType> kv_cache_dtype;         // none: the worker's choice
  std::optional<int32_t> num_blocks_override;  // with the null block
  std::optional<int32_t> max_model_len;        // none: what model and pool allow
  bool wants_host_blocks = false;              // all that the worker's swap space holds
  int32_t max_sequences = 256;
  int32_t max_tokens_per_step = 2048;
};

// The model hash of the first worker; a later one must have the same.
struct GroupIdentity {
  std::optional<uint64_t> model_hash;
};

// OK when the worker has what the scheduler expects.
// Errors: kFailedPrecondition CONFIG_MISMATCH, message "field: ...".
absl::Status CheckHandshake(const v1::HandshakeResponse& response,
                            const GroupSettings& settings,
                            const GroupIdentity& identity);

// The limits of an epoch with such a worker.
// Errors: kFailedPrecondition NO_MEMORY when not even one block can be used.
absl::StatusOr<StepLimits> AgreeLimits(const v1::HandshakeResponse& response,
                                       const GroupSettings& settings);

class WorkerSession {
 public:
  WorkerSession(Address address, const GroupSettings& settings);

  // Dials anew, and begins the epoch. The incarnation grows when the worker has seen a greater one.
  absl::StatusOr<GroupReady> Begin(uint64_t group_epoch);

  // Dials anew for the epoch that was begun.
  void Redial();

  // After Begin.
  v1::WorkerService::Stub& stub() { return *stub_; }

  // Ends the present call of Begin and fails every later one.
  void Cancel();

 private:
  absl::StatusOr<v1::HandshakeResponse> Handshake();
  absl::Status BeginEpoch(const StepLimits& limits, DType kv_cache_dtype, uint64_t group_epoch);
  // Makes `context` the one that Cancel ends; null: none.
  absl::Status SetContext(grpc::ClientContext* context);

  const Address address_;
  const GroupSettings settings_;
  GroupIdentity identity_;
  uint64_t incarnation_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  absl::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_WORKER_SESSION_H_
