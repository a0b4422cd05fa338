// StepLogRecord is one entry of a step log: a call of the core with its arguments, or the outcome
// of the previous call. The first record is a CoreConfig, which constructs the core.
//
// Thread safety: value types.
#ifndef QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_RECORD_H_
#define QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_RECORD_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "common/step/step_result.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/request.h"
#include "scheduler/step_log/byte_stream.h"
#include "scheduler/step_log/logged_fields.h"

namespace quire {

// Records of calls of the core. Two calls have no struct here: AddRequest is recorded as the
// Request, and ApplyStepResult as the StepResult.
struct EpochBegun {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  StepLimits limits;
  bool after_crash = false;
};
struct WorkersLost {};
struct RequestAborted {
  RequestId id;
};
struct SequenceStopped {
  RequestId id;
  int32_t sequence_index = 0;
};
struct PinPrefixCalled {  // a call of PinPrefix
  RequestId id;
  std::vector<TokenId> token_ids;
  std::string cache_salt;
};
struct PrefixUnpinned {
  RequestId id;
};
struct PlanStepCalled {
  Instant now = 0;
};
struct TimePassed {  // a call of ExpireRequests
  Instant now = 0;
};

// Records of outcomes of calls.
struct CallResult {
  // The AddOutcome, PinOutcome, absl::StatusCode or bool that the call returned.
  int64_t value = 0;

  friend bool operator==(const CallResult&, const CallResult&) = default;
};
struct PlanMade {  // summary of a plan; all 0 if there was no plan
  uint64_t digest = 0;
  uint64_t group_epoch = 0;
  uint64_t step_id = 0;
  uint32_t num_swap_outs = 0;
  uint32_t num_swap_ins = 0;
  uint32_t num_copies = 0;
  uint32_t num_introductions = 0;
  uint32_t num_slices = 0;
  uint64_t num_tokens = 0;
  uint32_t num_releases = 0;

  friend bool operator==(const PlanMade&, const PlanMade&) = default;
};
struct EventsTaken {  // written only if there were events
  uint64_t digest = 0;
  uint32_t num_tokens = 0;
  uint32_t num_finished = 0;

  friend bool operator==(const EventsTaken&, const EventsTaken&) = default;
};

using StepLogRecord = std::variant<CoreConfig,
                                   EpochBegun,
                                   WorkersLost,
                                   Request,
                                   RequestAborted,
                                   SequenceStopped,
                                   PinPrefixCalled,
                                   PrefixUnpinned,
                                   PlanStepCalled,
                                   TimePassed,
                                   StepResult,
                                   CallResult,
                                   PlanMade,
                                   EventsTaken>;

QUIRE_LOGGED_FIELDS(EpochBegun, scheduler_incarnation, group_epoch, limits, after_crash)
// PutTail writes the fields that were added to a record type later, after all other fields. If all
// of the later fields have their default values, PutTail writes nothing, so that older logs stay
// readable. Most record types have no later fields.
template <typename T>
void PutTail(const T& /*record*/, ByteWriter& /*out*/) {}
template <typename T>
void GetTail(ByteReader& /*in*/, T& /*record*/) {}
// Writes wants_next_blocks and blocks_per_page.
void PutTail(const EpochBegun& begun, ByteWriter& out);
void GetTail(ByteReader& in, EpochBegun& begun);

QUIRE_LOGGED_FIELDS(RequestAborted, id)
QUIRE_LOGGED_FIELDS(SequenceStopped, id, sequence_index)
QUIRE_LOGGED_FIELDS(PinPrefixCalled, id, token_ids, cache_salt)
QUIRE_LOGGED_FIELDS(PrefixUnpinned, id)
QUIRE_LOGGED_FIELDS(PlanStepCalled, now)
QUIRE_LOGGED_FIELDS(TimePassed, now)
QUIRE_LOGGED_FIELDS(CallResult, value)
QUIRE_LOGGED_FIELDS(PlanMade,
                    digest,
                    group_epoch,
                    step_id,
                    num_swap_outs,
                    num_swap_ins,
                    num_copies,
                    num_introductions,
                    num_slices,
                    num_tokens,
                    num_releases)
QUIRE_LOGGED_FIELDS(EventsTaken, digest, num_tokens, num_finished)

// Cost: O(size of the plan).
PlanMade Summarize(const StepPlan& plan);
// The digest covers all fields of the events. Cost: O(size of the events).
EventsTaken Summarize(const std::vector<OutputEvent>& events);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_STEP_LOG_RECORD_H_
