// RecordedCore wraps a SchedulerCore and writes a step log. For every call that changes the core,
// it writes the arguments before the call and the outcome after the call. From this log, Replay
// (replay.h) makes the same plans again. Without a log, RecordedCore only forwards the calls.
//
// The log holds prompts, output and the key of the block hashes, so it must be kept secret.
//
// Thread safety: as SchedulerCore.
// Cost:          with a log, O(arguments and outcome); scheduler/step_log/README.md has figures.
#ifndef QUIRE_SCHEDULER_STEP_LOG_RECORDED_CORE_H_
#define QUIRE_SCHEDULER_STEP_LOG_RECORDED_CORE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "scheduler/core/scheduler_core.h"
#include "scheduler/step_log/step_log_format.h"
#include "scheduler/step_log/step_log_sink.h"

namespace quire {

class RecordedCore {
 public:
  struct Log {
    // The sink must outlive the RecordedCore. Null: nothing is recorded.
    StepLogSink* sink = nullptr;
    std::string_view program_version;
  };

  explicit RecordedCore(const CoreConfig& config) : RecordedCore(config, Log{}) {}
  RecordedCore(const CoreConfig& config, const Log& log);

  // Cache events are not logged, because no plan and no output depends on them.
  void KeepCacheEvents() { core_.KeepCacheEvents(); }
  std::vector<CacheEvent> TakeCacheEvents() { return core_.TakeCacheEvents(); }

  // The methods below do the same as SchedulerCore's methods of these names. Methods that change
  // the core also record the call.
  void BeginEpoch(uint64_t scheduler_incarnation,
                  uint64_t group_epoch,
                  const StepLimits& limits,
                  bool after_crash);
  void OnWorkersLost();
  AddOutcome AddRequest(Request request);
  bool AbortRequest(RequestId id);
  bool FinishSequence(RequestId id, int32_t sequence_index);
  PinResult PinPrefix(RequestId id, std::vector<TokenId> token_ids, std::string cache_salt);
  bool UnpinPrefix(RequestId id);
  std::optional<StepPlan> PlanStep(Instant now);
  void ExpireRequests(Instant now);
  absl::Status ApplyStepResult(const StepResult& result);
  std::vector<OutputEvent> TakeEvents();

  std::optional<PrefixInfo> FindPrefix(RequestId id) const { return core_.FindPrefix(id); }
  bool IsPoisonPrefix(RequestId id) const { return core_.IsPoisonPrefix(id); }
  std::vector<PrefixInfo> prefixes() const { return core_.prefixes(); }
  const std::vector<RequestId>& started() const { return core_.started(); }
  bool has_unanswered_plan() const { return core_.has_unanswered_plan(); }
  bool has_work() const { return core_.has_work(); }
  Instant next_deadline() const { return core_.next_deadline(); }
  CoreStats stats() const { return core_.stats(); }
  BlockMap block_map(const BlockMapLimits& limits) const { return core_.block_map(limits); }
  std::vector<BlockHash> cached_hashes() const { return core_.cached_hashes(); }
  void CheckInvariants() const { core_.CheckInvariants(); }

 private:
  template <typename T>
  void Record(const T& record) {
    if (sink_ != nullptr) {
      sink_->Write(encoder_.Record(record));
    }
  }

  SchedulerCore core_;
  StepLogSink* const sink_;
  StepLogEncoder encoder_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_RECORDED_CORE_H_
