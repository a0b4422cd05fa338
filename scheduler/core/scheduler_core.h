// SchedulerCore decides what every step computes. It is a state machine: events in, one StepPlan
// out, its StepResult back in. It has no thread, clock, socket, random device or protocol type, so
// the server, the simulator, the tests and the fuzzers drive this same object.
//
// The caller's duties, in this order:
//   1. BeginEpoch when workers are ready. Until then, and after OnWorkersLost, requests queue and
//      PlanStep returns nullopt.
//   2. PlanStep(now), which returns nullopt if there is nothing to do. At most one plan may be
//      unanswered.
//   3. Send the plan to every rank, and pass the ranks' merged answer to ApplyStepResult. If
//      ApplyStepResult returns an error, the answer does not fit the plan, and nothing has changed:
//      abandon the worker group's epoch, then call OnWorkersLost.
//   4. TakeEvents after any call, and publish the events in order.
// AddRequest, AbortRequest and FinishSequence may be called at any time, also while a step runs.
// The blocks of a sequence that ends while a step runs are not reused before the step is answered.
//
// Thread safety: not thread-safe; owned by the scheduler loop.
// Invariants:    CheckInvariants lists and checks them.
// Cost:          PlanStep and ApplyStepResult are O(sequences in the step) and allocate nothing
//                per sequence in a steady decode.
// Source:        PagedAttention, Kwon et al. 2023, sections 4.2, 4.3, 4.5. One kind of step
//                for prefill and decode: vLLM v1. A state machine without I/O: etcd raft.
#ifndef QUIRE_SCHEDULER_CORE_SCHEDULER_CORE_H_
#define QUIRE_SCHEDULER_CORE_SCHEDULER_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "common/step/step_result.h"
#include "scheduler/core/block_map.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/core_stats.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/prefix_info.h"
#include "scheduler/core/request.h"
#include "scheduler/kv_cache/cache_event.h"

namespace quire {

struct CoreState;

enum class AddOutcome : uint8_t {
  kQueued,
  kQueueFull,            // max_queued_requests is reached (resumed request: max_resumed_requests)
  kQueueTokensFull,      // would exceed max_queued_tokens (resumed request: see waiting_queue.h)
  kTenantFull,           // the tenant's share of one of these bounds is full (waiting_queue.h)
  kDeadlineUnreachable,  // the request is estimated to miss its deadline
  kTooLong,              // the prompt leaves no room for a token within max_model_len
  // One of three cases: at full length, the sequences need more blocks than pinned prefixes leave
  // of the pool; the request has more than max_sequences live sequences; a sequence of a resumed
  // request exceeds max_model_len.
  kNeverFits,
};

class SchedulerCore {
 public:
  explicit SchedulerCore(const CoreConfig& config);
  ~SchedulerCore();
  SchedulerCore(const SchedulerCore&) = delete;
  SchedulerCore& operator=(const SchedulerCore&) = delete;

  // Begins an epoch: a worker group is ready, with an empty pool. Requests whose full length no
  // longer fits finish with kNoCapacity. after_crash: a request may have caused the last loss of
  // workers, because a worker process died, hung in the step, or failed the step. In that case the
  // requests of the lost step are recorded (crash_suspects.h). A request that crashed its workers
  // kMaxCrashes times ends with kWorkerCrash. REQUIRES: no epoch is active; limits are positive.
  void BeginEpoch(uint64_t scheduler_incarnation,
                  uint64_t group_epoch,
                  const StepLimits& limits,
                  bool after_crash = false);

  // Drops the epoch and the unanswered plan. Every running or swapped sequence keeps its committed
  // tokens and waits again, ahead of newer requests.
  void OnWorkersLost();

  // Queues the request, or returns why it is refused. A new request that could exceed max_model_len
  // is cut to max_model_len, where it ends with kLength. Refuses a request that does not fit the
  // limits of the current epoch or, between epochs, of the last one. Before the first epoch only
  // the queue bounds are checked, and the request is cut when the first epoch begins. REQUIRES:
  // request.id is greater than every id before; the prompt is not empty; max_tokens >= 1;
  // num_sequences >= 1; IsResumable(request). With beam search, CheckBeamSearchParams accepts its
  // parameters, and sampling is greedy with num_candidates() logprobs.
  AddOutcome AddRequest(Request request);

  // Ends every sequence of the request with kAborted. Returns false if the request is unknown or
  // finished.
  bool AbortRequest(RequestId id);

  // Ends one sequence with kStop, because the caller found a stop string in its text. If a step is
  // running, the token that the step samples for the sequence is dropped. Returns false if the
  // sequence is unknown, finished, or part of a beam search, whose output is known only at its end.
  bool FinishSequence(RequestId id, int32_t sequence_index);

  // Computes the blocks of a prefix and holds them: see pinned_prefixes.h. The prefix is pinned
  // when FindPrefix reports kPinned. A second call with the same tokens and salt returns the
  // existing prefix. REQUIRES: id is greater than every id before; token_ids is not empty and
  // within the vocabulary.
  PinResult PinPrefix(RequestId id, std::vector<TokenId> token_ids, std::string cache_salt);

  // Unpins a prefix; requests that share the prefix's blocks keep these blocks. Returns false if
  // there is no such prefix.
  bool UnpinPrefix(RequestId id);

  // Returns nullopt if the prefix does not exist: never pinned, unpinned, failed with non-finite
  // logits twice, or crashed its workers.
  std::optional<PrefixInfo> FindPrefix(RequestId id) const;
  // Returns true if the prefix is gone because it crashed its workers kMaxCrashes times.
  bool IsPoisonPrefix(RequestId id) const;
  std::vector<PrefixInfo> prefixes() const;  // oldest first

  // Ends expired requests, then gives out the step's token budget in the policy's order: to running
  // groups first, then to swapped and waiting groups. A crash suspect gets the whole budget. If
  // blocks run out, preempts groups behind the group that needs blocks, and admits no group. The
  // plan also releases handles. A plan that only releases handles is returned only if a request
  // waits for these handles. REQUIRES: no plan is unanswered.
  std::optional<StepPlan> PlanStep(Instant now);

  // Ends expired requests (deadline <= now). PlanStep calls this first. Callers must call it too
  // during a long step and while there are no workers.
  void ExpireRequests(Instant now);

  // Commits the sampled tokens of the unanswered plan. Fails with kInvalidArgument, without a
  // change, if the result does not answer this plan (header, digest, handles, token range).
  absl::Status ApplyStepResult(const StepResult& result);

  // Returns the events since the last call, in order.
  std::vector<OutputEvent> TakeEvents();

  // Records cache events from now on, beginning with kCleared. REQUIRES: no epoch is active.
  void KeepCacheEvents();
  // Returns the cache events since the last call, in order. The events of an epoch begin and end
  // with kCleared.
  std::vector<CacheEvent> TakeCacheEvents();

  // Requests whose computation begins in the last plan, including requests that compute prefixes.
  // Some may have ended since.
  const std::vector<RequestId>& started() const;
  bool has_unanswered_plan() const;
  // True when PlanStep could return a plan.
  bool has_work() const;
  // The earliest deadline of any live request; kInfiniteFuture if no request has a deadline.
  Instant next_deadline() const;
  CoreStats stats() const;
  // Returns the map of block_map.h; its counts agree with stats(). REQUIRES: as for MakeBlockMap.
  BlockMap block_map(const BlockMapLimits& limits) const;

  // Returns the hashes under which the prefix cache lists blocks, private ones included. O(blocks):
  // for tests.
  std::vector<BlockHash> cached_hashes() const;

  // Aborts if an invariant of the state is broken, with a message that names it. O(state): for
  // tests, simulation and debug builds.
  void CheckInvariants() const;

 private:
  std::unique_ptr<CoreState> state_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_SCHEDULER_CORE_H_
