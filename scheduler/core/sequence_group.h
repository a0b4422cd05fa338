// SequenceGroup holds the sequences of one request. The sequences are admitted, preempted and
// recovered together: a request never holds blocks for half of its answer while the other half
// waits. Sequences that have finished stay in the group and take no further part.
//
// Thread safety: not thread-safe; owned by CoreState.
// Invariants:    all sequences that are not finished are in the same state.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5 (gang-scheduled sequence groups).
#ifndef QUIRE_SCHEDULER_CORE_SEQUENCE_GROUP_H_
#define QUIRE_SCHEDULER_CORE_SEQUENCE_GROUP_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/core/beam_search.h"
#include "scheduler/core/request.h"
#include "scheduler/core/sequence.h"

namespace quire {

// Beam search under way. Each live beam occupies one sequence of the group.
struct LiveBeams {
  BeamSearch search;
  std::vector<size_t> sequence_of_beam;  // index in SequenceGroup::sequences(), by live beam
};

// The rank of a group in the policy's order: the smallest is served first.
struct ScheduleRank {
  int64_t value = 0;
  RequestId id;  // tie-break: the older request is first

  // NOLINTNEXTLINE(modernize-use-nullptr): the check trips over a defaulted comparison
  friend auto operator<=>(const ScheduleRank&, const ScheduleRank&) = default;
};

// The last estimate of whether a group can be complete by its deadline (deadline_admission.h).
enum class DeadlineEstimate : uint8_t { kNone, kReachable, kUnreachable };

class SequenceGroup {
 public:
  // All sequences begin as waiting, except resumed sequences that had ended. REQUIRES: group_size()
  // >= 1; the request has a prompt, and a sequence that has not ended.
  explicit SequenceGroup(Request request);
  SequenceGroup(const SequenceGroup&) = delete;
  SequenceGroup& operator=(const SequenceGroup&) = delete;

  const Request& request() const { return request_; }
  // Cuts the request to max_model_len (see quire::CutToContext). Called when the first ready
  // workers have made max_model_len known.
  void CutToContext(int32_t max_model_len) { quire::CutToContext(max_model_len, &request_); }
  RequestId id() const { return request_.id; }
  // Tokens of the prompt and of resumed output.
  int64_t num_tokens_at_arrival() const { return num_tokens_at_arrival_; }

  bool has_rank() const { return rank_.has_value(); }
  ScheduleRank rank() const { return {*rank_, id()}; }  // REQUIRES: has_rank()
  void SetRank(int64_t value);                          // REQUIRES: !has_rank()

  std::vector<Sequence>& sequences() { return sequences_; }
  const std::vector<Sequence>& sequences() const { return sequences_; }

  int32_t num_live_sequences() const;  // sequences that are not finished
  bool is_finished() const { return num_live_sequences() == 0; }
  bool is_running() const;
  bool is_swapped() const;
  // Whether any token of the group was ever computed.
  bool has_started() const;
  // Whether no live sequence has an output token, so that all live sequences are alike. While this
  // holds, the first live sequence (the leader) computes the prompt, and the others fork from the
  // leader.
  bool is_undivided() const;
  bool IsLeader(const Sequence& sequence) const;
  // Whether the sequence has no blocks yet and will fork from the leader.
  bool WaitsForLeader(const Sequence& sequence) const;

  // Returns true if this sequence has to report log-probabilities of prompt tokens that are not
  // reported yet. Only the group's first live sequence reports them. Until it has reported all, it
  // takes no blocks from the prefix cache, because only computed tokens have logits.
  bool ScoresPrompt(const Sequence& sequence) const;
  // Number of prompt tokens whose log-probabilities were reported, from position 1 on.
  int32_t num_scored_tokens() const { return num_scored_tokens_; }
  void CountScored(int32_t num_tokens) { num_scored_tokens_ += num_tokens; }

  // Prompt tokens whose blocks were cached when the group first ran. 0 before that.
  int32_t num_cached_prompt_tokens() const { return num_cached_prompt_tokens_.value_or(0); }
  // Records that a sequence begins with num_tokens cached tokens. Only the first call counts: later
  // calls follow a preemption or belong to other sequences.
  void NoteCached(int32_t num_tokens);

  bool is_beam_search() const { return request_.beam_search.has_value(); }
  // Whether nothing is computed for the sequence now, because it is not a live beam.
  bool IsIdle(const Sequence& sequence) const;

  int32_t num_preemptions() const { return num_preemptions_; }
  void CountPreemption() { ++num_preemptions_; }

  // Returns the tokens of the prompt, followed by the committed output tokens.
  std::vector<TokenId> TokenIdsOf(const Sequence& sequence) const;

  // The state of a beam search. Empty before the first candidates, and without beam search.
  std::optional<LiveBeams> beams;
  DeadlineEstimate estimate = DeadlineEstimate::kNone;
  // Whether the group passed groups that waited longer, because its prompt is short (overtaking.h).
  bool has_overtaken = false;
  // The last result of CoreState::NumBlocksToResume. Meaningful only while the group is swapped.
  std::optional<int32_t> num_blocks_to_resume;
  // Whether a slice of the group was ever planned.
  bool was_planned = false;

 private:
  bool IsFirstLive(const Sequence& sequence) const;

  Request request_;
  int64_t num_tokens_at_arrival_;
  std::optional<int64_t> rank_;
  std::vector<Sequence> sequences_;  // indexed by sequence_index
  int32_t num_preemptions_ = 0;
  int32_t num_scored_tokens_;
  std::optional<int32_t> num_cached_prompt_tokens_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_SEQUENCE_GROUP_H_
