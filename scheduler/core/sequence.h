// Sequence is one token stream of a request. It also records what the worker knows of the stream.
// The state of a sequence changes only through the functions below, each of which keeps all members
// consistent.
//
// The gap of a sequence is the number of its known tokens that are not yet in the KV cache:
// num_tokens() - num_computed_tokens(). Prefill, chunked prefill, recompute and decode differ only
// in the size of the gap. In one step the worker computes a slice: some or all tokens of the gap. A
// slice with all of them yields one more token, so a decoding sequence has a gap of 1.
//
// Thread safety: not thread-safe; owned by its SequenceGroup.
// Invariants:    num_computed_tokens() + num_scheduled_tokens() <= num_tokens().
//                While running: table.num_tokens() == num_computed_tokens() +
//                num_scheduled_tokens(). While swapped: host_table.num_tokens() ==
//                num_computed_tokens(). Waiting and finished sequences have no blocks, and no
//                computed or scheduled tokens.
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
  kWaiting,  // Not known to the worker, holds no block: new, or it must be computed again.
  kRunning,  // Has a handle, and gets a slice in each step if budget and blocks allow. Keeps its
             // blocks between slices.
  kSwapped,  // Preempted: not known to the worker, but the computed blocks are kept in host memory.
  kFinished,  // Has ended; only its counts are still read.
};

class Sequence {
 public:
  // Creates a waiting sequence. If output_token_ids is not empty, the sequence is in the same state
  // as after a preemption by recomputation. REQUIRES: num_prompt_tokens >= 1.
  Sequence(int32_t sequence_index,
           int32_t num_prompt_tokens,
           std::vector<TokenId> output_token_ids = {});

  // The sequence runs from now on, under the handle. A swapped sequence keeps its computed tokens.
  // REQUIRES: waiting, or swapped with its blocks back in `table`.
  void BecomeRunning(SequenceHandle handle);

  // Called when the blocks of the sequence were moved to host memory (host_table). REQUIRES:
  // running without a slice, with an empty table.
  void BecomeSwapped();

  // Counts the first num_computed_tokens tokens as computed. The table already has their blocks,
  // because other sequences computed them. REQUIRES: running, not introduced,
  // num_computed_tokens() <= num_computed_tokens < num_tokens().
  void BeginWithCached(int32_t num_computed_tokens);

  // Called when the plan that is being made introduces the sequence: tells the worker its tokens,
  // blocks and sampling parameters. REQUIRES: running, not introduced.
  void BecomeIntroduced();

  // Called when the worker no longer has the sequence. All its known tokens must be computed again.
  // REQUIRES: running or swapped, with empty tables.
  void BecomeWaiting();

  // Called when the sequence has ended. REQUIRES: not finished, with empty tables.
  void BecomeFinished();

  // Called when a slice of num_tokens was planned. REQUIRES: running, no slice is unanswered,
  // 0 < num_tokens <= gap().
  void BeginSlice(int32_t num_tokens);

  // Called when the slice was answered. Counts the slice's tokens as computed. REQUIRES: a slice is
  // unanswered.
  void EndSlice();

  // Appends a sampled token to the output. REQUIRES: running, gap() == 0.
  void Commit(TokenId token_id);

  // Beam search: as Commit, but the worker need not have sampled the token. If the worker knows the
  // sequence, the next slice tells the worker to use this token instead of a sampled one.
  void CommitForced(TokenId token_id);

  // Beam search: drops the tokens of this sequence, which is idle until it becomes a fork.
  // REQUIRES: running without a slice, with an empty table.
  void BecomeIdle();

  // Beam search: this sequence takes over the tokens of `other`. The worker does not know this fork
  // yet. REQUIRES: idle; the table of this sequence already shares the blocks of `other`.
  void BecomeForkOf(const Sequence& other);

  // Beam search: keeps this sequence's candidates for its next token. When every beam has its
  // candidates, BeamSearch ranks the candidates of all beams together. REQUIRES: running,
  // gap() == 0.
  void KeepCandidates(std::vector<BeamCandidate> candidates);

  // Returns the token that CommitForced left for the next slice, if any, and clears it.
  std::optional<TokenId> TakeForcedToken() { return std::exchange(forced_token_id_, std::nullopt); }

  // Called when the last slice gave a non-finite row of logits. Returns how many times in
  // succession the same token had such a row.
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
  // Whether the worker knows the handle. This can be true while is_introduced() is false: the
  // handle of an idle sequence or a new fork may come from an earlier beam in this Sequence.
  bool is_handle_known() const { return is_handle_known_; }
  const std::vector<BeamCandidate>& candidates() const { return candidates_; }

  int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int32_t num_output_tokens() const { return static_cast<int32_t>(output_token_ids_.size()); }
  int32_t num_tokens() const { return num_prompt_tokens_ + num_output_tokens(); }
  int32_t num_computed_tokens() const { return num_computed_tokens_; }
  int32_t num_scheduled_tokens() const { return num_scheduled_tokens_; }
  // The highest number of computed tokens that the sequence ever had. A preemption does not lower
  // this number.
  int32_t num_tokens_computed_ever() const { return num_tokens_computed_ever_; }
  // Whether some tokens of the sequence were computed, then lost, and are not computed again yet.
  bool is_recomputing() const { return num_computed_tokens_ < num_tokens_computed_ever_; }
  int32_t gap() const { return num_tokens() - num_computed_tokens_; }
  const std::vector<TokenId>& output_token_ids() const { return output_token_ids_; }

  BlockTable table;      // changed through KvCacheManager only
  HostTable host_table;  // changed through KvCacheManager only; empty unless swapped
  // Hashes of the first full blocks, as many as were needed so far. A hash depends only on the
  // tokens and the block size, so the hashes are kept when the blocks are freed.
  std::vector<BlockHash> block_hashes;
  // Index of the first hash in block_hashes whose block was in no table at the last lookup. The
  // next lookup starts at this index.
  int32_t num_blocks_held_at_most = 0;
  // Whether the worker was told, when this sequence was introduced, to report log-probabilities of
  // the prompt (SequenceGroup::ScoresPrompt).
  bool scores_prompt = false;

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
