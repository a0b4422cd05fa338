// GroupAction is an order that a WorkerGroup gives to the owner of its connections (links) or to
// the scheduling loop. Actions are executed in order, and none of them blocks.
//
// A link is one connection to the worker of one rank. Link numbers are never reused, so a late
// event of an old connection cannot be mistaken for an event of the new one.
//
// Thread safety: value types.
#ifndef QUIRE_SCHEDULER_GROUP_GROUP_ACTION_H_
#define QUIRE_SCHEDULER_GROUP_GROUP_ACTION_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "common/step/step_limits.h"
#include "common/step/step_result.h"
#include "scheduler/group/agreement.h"

namespace quire {

struct LinkId {
  int32_t rank = 0;
  uint64_t number = 0;

  friend bool operator==(const LinkId&, const LinkId&) = default;
};

// Connect to the rank's worker and open a Watch call. This also closes the rank's previous link:
// end the calls of the previous link, and drop its late events or report them under the previous
// link's number.
struct DialLink {
  LinkId link;
  uint64_t scheduler_incarnation = 0;
};
struct CloseLink {
  LinkId link;
};
// Why this scheduler refuses a process of the rank. The next greeting tells `why` to that process;
// any other process of the rank ignores the refusal. If both fields are empty, none is refused.
struct RankRefusal {
  std::string uuid;
  std::string why;  // the reason and the message, for example "CONFIG_MISMATCH model_hash: ..."
};
struct GreetWorker {
  LinkId link;
  uint64_t scheduler_incarnation = 0;
  RankRefusal refusal;
};
struct BeginWorkerEpoch {
  LinkId link;
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  StepLimits limits;
  DType kv_cache_dtype = DType::kF32;
  int32_t rope_length = 0;              // Numerics::rope_length
  std::vector<std::string> rendezvous;  // by rank: address that the other ranks dial
};
// Open a stream of steps, over which plans go out and answers come back. A stream already open on
// this link is ended first.
struct OpenSteps {
  LinkId link;
};
// End the stream of steps. The owner of the links then calls OnStepsEnd, as if the connection had
// broken.
struct BreakSteps {
  LinkId link;
};
// Send the plan that WorkerGroup::Plan got last.
struct SendPlan {
  LinkId link;
};

// To the loop: the group is ready, and the epoch group_epoch begins with an empty block pool.
struct ReportReady {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  Agreement agreement;
  bool after_crash = false;  // the last epoch ended by a crash; see SchedulerCore::BeginEpoch
};
struct ReportResult {
  StepResult result;
};
// An answer of the rank was dropped, because it came over an old link or matched no pending step.
struct ReportStale {
  int32_t rank = 0;
};
struct ReportLost {
  uint64_t group_epoch = 0;
  absl::Status status;
};
// This scheduler stands by, because another scheduler holds the workers or may hold them. The loop
// must end all requests now; it already knows that no epoch is ready.
struct ReportStandby {
  // Incarnation of the other scheduler, or kUnknownScheduler. 0: this scheduler no longer stands
  // by, and takes the workers as soon as all are connected.
  uint64_t scheduler_incarnation = 0;
};
// This group refuses a reachable worker (agreement.h, Succession::IsPossible), or the worker
// refuses to join. The worker is dialed again, with pauses.
struct ReportRefused {
  int32_t rank = 0;
  absl::Status status;
};
// A worker cannot be reached, or its connection broke. Before the first epoch, this is not reported
// until GroupTiming::arrival_ns has passed. The worker is dialed again, with pauses.
struct ReportAway {
  int32_t rank = 0;
  absl::Status status;
};
// A worker has made progress in loading its model.
struct ReportLoading {
  int32_t rank = 0;
  int64_t loaded_bytes = 0;
  int64_t total_bytes = 0;
};

using GroupAction = std::variant<DialLink,
                                 CloseLink,
                                 GreetWorker,
                                 BeginWorkerEpoch,
                                 OpenSteps,
                                 BreakSteps,
                                 SendPlan,
                                 ReportReady,
                                 ReportResult,
                                 ReportStale,
                                 ReportLost,
                                 ReportStandby,
                                 ReportRefused,
                                 ReportAway,
                                 ReportLoading>;

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_GROUP_ACTION_H_
