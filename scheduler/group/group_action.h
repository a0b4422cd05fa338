// What a WorkerGroup wants done: to its links, by whoever owns the connections, and to the
// scheduling loop. Actions are done in order; none of them waits for anything.
//
// A link is one connection to the worker of one rank. Its number is never used again, so that what
// a connection says after it was given up can be told from what its successor says.
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

// Connect to the rank's worker, and begin to watch it. The link before is given up: all its calls
// are ended, and what they still say is dropped or carries its old number.
struct DialLink {
  LinkId link;
  uint64_t scheduler_incarnation = 0;
};
// Give the link up.
struct CloseLink {
  LinkId link;
};
struct GreetWorker {
  LinkId link;
  uint64_t scheduler_incarnation = 0;
};
struct BeginWorkerEpoch {
  LinkId link;
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  StepLimits limits;
  DType kv_cache_dtype = DType::kF32;
  std::vector<std::string> rendezvous;  // of all ranks
};
// Open a stream of steps. One that is open on this link has ended, or is ended now.
struct OpenSteps {
  LinkId link;
};
// End the stream of steps; its end is reported like any other.
struct BreakSteps {
  LinkId link;
};
// Send the plan that was given last.
struct SendPlan {
  LinkId link;
};

// To the loop: the group answers under this epoch, with an empty pool.
struct ReportReady {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  Agreement agreement;
  bool after_crash = false;  // as of SchedulerCore::BeginEpoch
};
struct ReportResult {
  StepResult result;
};
// An answer to no step that is asked for: dropped.
struct ReportStale {
  int32_t rank = 0;
};
struct ReportLost {
  uint64_t group_epoch = 0;
  absl::Status status;
};
// Another scheduler has the workers, or may have them, and this one waits for its end. An epoch of
// this one was lost before, and its requests end. 0: it waits for none any more, and takes the
// workers as soon as all are there.
struct ReportStandby {
  // The other one's, or kUnknownScheduler.
  uint64_t scheduler_incarnation = 0;
};
// A worker is there and may not be let in, or cannot be used. It is asked again, with pauses.
struct ReportRefused {
  int32_t rank = 0;
  absl::Status status;
};
// A worker cannot be reached, or broke off, and before the first epoch it has had the time to come
// (GroupTiming::arrival_ns). It is dialled again, with pauses.
struct ReportAway {
  int32_t rank = 0;
  absl::Status status;
};
// A worker is loading its model, and got further.
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
