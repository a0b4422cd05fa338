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
  kFinished,  // Has ended; only its counts are still read.
};

class Sequence {
 public:
  // A waiting sequence with its earlier output, if any: in the state of a preempted one. REQUIRES:
  // num_prompt_tokens >= 1.
  Sequence(int32_t sequence_index,
           int32_t num_prompt_tokens,
           std::vector<TokenId> output_token_ids = {});

  // It runs under the handle; a swapped sequence keeps what it has computed. REQUIRES: waiting, or
  // swapped with its blocks back in the table.
  void BecomeRunning(SequenceHandle handle);

  // Its blocks go to host memory. REQUIRES: running without a slice, with an empty table.
  void BecomeSwapped();

  // Its first tokens are in blocks that others computed; the table holds them. REQUIRES: running,
  // not introduced, num_computed_tokens() <= num_computed_tokens < num_tokens().
  void BeginWithCached(int32_t num_computed_tokens);

  // The plan that is being made introduces it to the worker. REQUIRES: running, not introduced.
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

  // Beam search: as Commit, but the worker need not have sampled the token.
  void CommitForced(TokenId token_id);

  // Beam search: drops its tokens and is idle until it becomes a fork. REQUIRES: running without a
  // slice, with an empty table.
  void BecomeIdle();

  // Beam search: takes over the tokens of another sequence, whose blocks its table already shares.
  // The worker does not know it yet. REQUIRES: idle.
  void BecomeForkOf(const Sequence& other);

  // Beam search: keeps this sequence's candidates for its next token. Once every beam has its
  // candidates, all are weighed together. REQUIRES: running, gap() == 0.
  void KeepCandidates(std::vector<BeamCandidate> candidates);

  // Returns the token that the next slice forces on the worker, if any, and clears it.
  std::optional<TokenId> TakeForcedToken() { return std::exchange(forced_token_id_, std::nullopt); }

  // The last slice gave a non-finite row of logits. Returns how many times in succession that
  // happened for the next token.
  int32_t CountNonFinite() { return ++num_non_finite_; }

  int32_t sequence_index() const { return sequence_index_; }
  SequenceState state() const { return state_; }
  bool is_finished() const { return state_ == SequenceState::kFinished; }
  bool is_running() const { return state_ == SequenceState::kRunning; }
  bool is_swapped() const { return state_ == SequenceState::kSwapped; }
  SequenceHandle handle() const { return handle_; }  // meaningful while running
  // Whether the worker knows this sequence with its present tokens. False for a new fork, and for a
  // running sequence whose group's leader still computes the prompt.
  bool is_introduced() const { return is_introduced_; }
  // Whether the worker knows its handle, perhaps for an earlier beam in its place.
  bool is_handle_known() const { return is_handle_known_; }
  const std::vector<BeamCandidate>& candidates() const { return candidates_; }

  int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int32_t num_output_tokens() const { return static_cast<int32_t>(output_token_ids_.size()); }
  int32_t num_tokens() const { return num_prompt_tokens_ + num_output_tokens(); }
  int32_t num_computed_tokens() const { return num_computed_tokens_; }
  int32_t num_scheduled_tokens() const { return num_scheduled_tokens_; }
  // The most that it ever had computed, before a recomputation included.
  int32_t num_tokens_computed_ever() const { return num_tokens_computed_ever_; }
  // Whether some of its tokens were computed, are lost, and are not computed again yet.
  bool is_recomputing() const { return num_computed_tokens_ < num_tokens_computed_ever_; }
  int32_t gap() const { return num_tokens() - num_computed_tokens_; }
  const std::vector<TokenId>& output_token_ids() const { return output_token_ids_; }

  BlockTable table;      // changed through KvCacheManager only
  HostTable host_table;  // likewise; empty unless swapped
  // Hashes of its full blocks, as far as they were needed. They depend on the tokens alone, so they
  // outlive the blocks, and stay as long as blocks keep their size.
  std::vector<BlockHash> block_hashes;
  // Index of the first of them that no table held at the last lookup; the next starts there.
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
