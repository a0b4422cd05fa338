// Inbox is the only queue into the loop. Client requests, aborts, operator calls and events of the
// workers all pass through it. TenantShares limits the number of waiting requests and of waiting
// calls to pin a prefix. All other events must arrive, so the inbox never refuses them. Their
// number is bounded anyway: at most one abort per admitted request, one reply per step, and so on.
//
// Thread safety: every method may be called from any thread.
#ifndef QUIRE_SCHEDULER_LOOP_INBOX_H_
#define QUIRE_SCHEDULER_LOOP_INBOX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/base/bounded_queue.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/step/step_limits.h"
#include "common/step/step_result.h"
#include "scheduler/core/request.h"
#include "scheduler/loop/output_router.h"
#include "scheduler/loop/prefix_calls.h"
#include "scheduler/loop/response_stream.h"
#include "scheduler/loop/state_calls.h"
#include "scheduler/loop/tenant_shares.h"

namespace quire {

// A client's request. The loop and the gRPC call share ownership of the stream, and either can be
// the first to drop its reference.
struct AddRequest {
  Request request;
  OutputOptions output;
  std::shared_ptr<ResponseStream> stream;
};

// Ends a request. The request's stream ends with `status`. Unknown and finished ids are ignored.
struct AbortRequest {
  RequestId id;
  absl::Status status;
};

// Ends every request with `status`. Later requests are refused with the same status.
struct AbortAll {
  absl::Status status;
};

// A worker group is ready: the epoch group_epoch begins, with an empty block pool.
struct GroupReady {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  StepLimits limits;
  std::string numerics;  // Numerics::fingerprint
  std::string kv_cache_dtype;
  int64_t block_bytes = 0;   // K and V of one block on one worker
  bool after_crash = false;  // see SchedulerCore::BeginEpoch
};

struct StepReply {
  StepResult result;
};

// A worker's answer was dropped, because it matched no pending step.
struct StaleReply {};

// A worker has made progress in loading its model.
struct GroupLoading {
  int32_t rank = 0;
  int64_t loaded_bytes = 0;
  int64_t total_bytes = 0;
};

// The epoch group_epoch is over: its worker group was lost (worker_group.h).
struct GroupLost {
  uint64_t group_epoch = 0;
  absl::Status status;
};

// If scheduler_incarnation is not 0, this scheduler becomes a standby, because another scheduler
// holds or may hold the workers. The loop knows by then that the last epoch is over: GroupLost
// came, or the loop abandoned the epoch. If scheduler_incarnation is 0, this scheduler stops being
// a standby.
struct GroupStandby {
  uint64_t scheduler_incarnation = 0;  // the other scheduler's, or kUnknownScheduler; or 0
};

// Makes SchedulerLoop::Run return.
struct Stop {};

using LoopEvent = std::variant<AddRequest,
                               AbortRequest,
                               AbortAll,
                               PinCall,
                               UnpinCall,
                               ListPrefixesCall,
                               GetStateCall,
                               GroupReady,
                               StepReply,
                               StaleReply,
                               GroupLoading,
                               GroupLost,
                               GroupStandby,
                               Stop>;

// Names of the events, indexed by LoopEvent::index().
inline constexpr std::array<std::string_view, std::variant_size_v<LoopEvent>> kLoopEventNames = {
    "add_request",
    "abort_request",
    "abort_all",
    "pin",
    "unpin",
    "list_prefixes",
    "get_state",
    "group_ready",
    "step_reply",
    "stale_reply",
    "group_loading",
    "group_lost",
    "group_standby",
    "stop"};

class Inbox {
 public:
  // bounds: limits on waiting requests. The inbox counts no bytes, so limits on bytes have no
  // effect.
  explicit Inbox(const TenantShares::Bounds& bounds = {}) : shares_(bounds) {}

  // Queues the request and returns its id; ids grow in the order of the queue. Errors:
  // kResourceExhausted, with QUEUE_FULL if the inbox is full, or TENANT_LIMIT if the tenant's share
  // of the inbox is full.
  absl::StatusOr<RequestId> Add(AddRequest add);

  // Queues a call to pin a prefix, which counts as a waiting request. Errors: as for a request.
  absl::Status Add(PinCall call);

  void Post(LoopEvent event) { queue_.PushAlways(std::move(event)); }

  // Takes all queued events. If the queue is empty, waits at most `timeout` for an event.
  std::deque<LoopEvent> TakeAll(absl::Duration timeout);

 private:
  Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  TenantShares shares_ ABSL_GUARDED_BY(mutex_);
  BoundedQueue<LoopEvent> queue_{std::numeric_limits<size_t>::max()};
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_INBOX_H_
