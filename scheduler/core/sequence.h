// Sequence is one token stream of a request and what the worker holds of it. Its state changes only
// through the named transitions, each of which resets all that must be reset.
//
// Planning closes a gap: num_tokens() - num_computed_tokens() tokens are known but not yet in the
// KV cache. Prefill, chunked prefill, recompute and decode differ only in how wide the gap is.
// A slice that closes it yields one more token, so a decoding sequence has a gap of 1.
//
// Thread safety: not thread-safe; owned by its SequenceGroup.
// Invariants:    num_computed_tokens() + num_scheduled_tokens() <= num_tokens().
//                table.num_tokens() == num_computed_tokens() + num_scheduled_tokens() while
//                running, host_table.num_tokens() == num_computed_tokens() while swapped. Waiting
//                and finished sequences have no blocks, nothing computed or scheduled.
// Units:         tokens.
#ifndef QUIRE_SCHEDULER_CORE_SEQUENCE_H_
#define QUIRE_SCHEDULER_CORE_SEQUENCE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/kv_cache/block_hash.h"
#include "scheduler/kv_cache/block_table.h"
#include "scheduler/kv_cache/host_table.h"

namespace quire {

enum class SequenceState : uint8_t {
  kWaiting,  // Not known to the worker, holds no block: new, preempted, or its workers were lost.
  kRunning,  // Known to the worker under a handle. Has a slice in a step whenever budget and
             // blocks allow; between slices its blocks stay.
  kSwapped,  // Not known to the worker, its blocks lie in host memory: preempted, what was computed
             // is kept.
  kFinished,  // Said its last word; only its counts are still asked for.
};

class Sequence {
 public:
  // A waiting sequence with the output that it had before, if any: it is in the state of one that
  // was preempted. REQUIRES: num_prompt_tokens >= 1.
  Sequence(int32_t sequence_index,
           int32_t num_prompt_tokens,
           std::vector<TokenId> output_token_ids = {});

  // The worker is about to learn of it, from what was computed on when it was swapped.
  // REQUIRES: waiting, or swapped with its blocks back in the table.
  void BecomeRunning(SequenceHandle handle);

  // Its blocks go to host memory. REQUIRES: running without a slice, with an empty table.
  void BecomeSwapped();

  // Its first tokens are in blocks that others computed; the table holds them. REQUIRES: running,
  // nothing computed, 0 <= num_computed_tokens < num_tokens().
  void BeginWithCached(int32_t num_computed_tokens);

  // The worker knows it from the plan on that is being made. REQUIRES: running, not introduced.
  void BecomeIntroduced();

  // The worker no longer has it, and it starts over from its known tokens.
  // REQUIRES: running or swapped, with empty tables.
  void BecomeWaiting();

  // REQUIRES: not finished, with empty tables.
  void BecomeFinished();

  // A slice of num_tokens was planned. REQUIRES: running, no slice is unanswered,
  // 0 < num_tokens <= gap().
  void BeginSlice(int32_t num_tokens);

  // That slice was answered: its tokens are computed. REQUIRES: a slice is unanswered.
  void EndSlice();

  // A sampled token becomes known. REQUIRES: running, gap() == 0.
  void Commit(TokenId token_id);

  // Beam search: the same with a token that the worker need not have sampled.
  void CommitForced(TokenId token_id);

  // Beam search: it has nothing until it becomes a fork. REQUIRES: running without a slice, with an
  // empty table.
  void BecomeIdle();

  // Beam search: it has the tokens of another one, whose blocks its table shares already. The
  // worker has yet to learn of it. REQUIRES: idle.
  void BecomeForkOf(const Sequence& other);

  // Beam search: its likeliest next tokens, kept until every beam has its own and they are weighed
  // against each other. REQUIRES: running, gap() == 0.
  void KeepCandidates(std::vector<BeamCandidate> candidates);

  // The token that the next slice forces on the worker, if any; it is asked for once.
  std::optional<TokenId> TakeForcedToken() { return std::exchange(forced_token_id_, std::nullopt); }

  // The row of logits of the last slice was not finite. Returns how many times in a row this
  // happened for the token that comes next.
  int32_t CountNonFinite() { return ++num_non_finite_; }

  int32_t sequence_index() const { return sequence_index_; }
  SequenceState state() const { return state_; }
  bool is_finished() const { return state_ == SequenceState::kFinished; }
  bool is_running() const { return state_ == SequenceState::kRunning; }
  bool is_swapped() const { return state_ == SequenceState::kSwapped; }
  SequenceHandle handle() const { return handle_; }  // meaningful while running
  // Whether the worker knows it as it is. Not while it runs and waits for another sequence of its
  // group to compute the prompt, or is a new fork.
  bool is_introduced() const { return is_introduced_; }
  // Whether the worker knows its handle, be it as another sequence that had it before.
  bool is_handle_known() const { return is_handle_known_; }
  const std::vector<BeamCandidate>& candidates() const { return candidates_; }

  int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int32_t num_output_tokens() const { return static_cast<int32_t>(output_token_ids_.size()); }
  int32_t num_tokens() const { return num_prompt_tokens_ + num_output_tokens(); }
  int32_t num_computed_tokens() const { return num_computed_tokens_; }
  int32_t num_scheduled_tokens() const { return num_scheduled_tokens_; }
  // The most that were ever computed, before a recompute included.
  int32_t num_tokens_computed_ever() const { return num_tokens_computed_ever_; }
  // Some of its tokens were computed, are lost, and are not computed again yet.
  bool is_recomputing() const { return num_computed_tokens_ < num_tokens_computed_ever_; }
  int32_t gap() const { return num_tokens() - num_computed_tokens_; }
  const std::vector<TokenId>& output_token_ids() const { return output_token_ids_; }

  BlockTable table;      // changed through KvCacheManager only
  HostTable host_table;  // likewise; empty unless swapped
  // Of the full blocks of its tokens, as far as they were asked for: contents have names whether or
  // not a block holds them, so they stay when the blocks go, and as long as blocks keep their size.
  std::vector<BlockHash> block_hashes;
  // The first of them that no table held when it was looked for last: where to look first.
  int32_t num_blocks_held_at_most = 0;

 private:
  void ForgetWorkersState();
  void ForgetHandle();

  int32_t sequence_index_;
  int32_t num_prompt_tokens_;
  SequenceState state_ = SequenceState::kWaiting;
  SequenceHandle handle_ = 0;
  bool is_introduced_ = false;
  bool is_handle_known_ = false;
  int32_t num_computed_tokens_ = 0;
  int32_t num_scheduled_tokens_ = 0;
  int32_t num_tokens_computed_ever_ = 0;
  int32_t num_non_finite_ = 0;
  std::vector<TokenId> output_token_ids_;
  std::optional<TokenId> forced_token_id_;
  std::vector<BeamCandidate> candidates_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_SEQUENCE_H_
