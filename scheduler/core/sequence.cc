#include "scheduler/core/sequence.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {

Sequence::Sequence(int32_t sequence_index,
                   int32_t num_prompt_tokens,
                   std::vector<TokenId> output_token_ids)
    : sequence_index_(sequence_index),
      num_prompt_tokens_(num_prompt_tokens),
      output_token_ids_(std::move(output_token_ids)) {
  QUIRE_CHECK(num_prompt_tokens >= 1);
}

void Sequence::BecomeRunning(SequenceHandle handle) {
  QUIRE_CHECK(state_ == SequenceState::kWaiting || state_ == SequenceState::kSwapped);
  QUIRE_CHECK(host_table.empty() && table.num_tokens() == num_computed_tokens_);
  state_ = SequenceState::kRunning;
  handle_ = handle;
}

void Sequence::BeginWithCached(int32_t num_computed_tokens) {
  QUIRE_CHECK(state_ == SequenceState::kRunning);
  QUIRE_CHECK(!is_introduced_ && num_scheduled_tokens_ == 0);
  QUIRE_CHECK(num_computed_tokens >= num_computed_tokens_ && num_computed_tokens < num_tokens());
  QUIRE_CHECK_EQ(num_computed_tokens, table.num_tokens());
  num_computed_tokens_ = num_computed_tokens;
}

void Sequence::BecomeIntroduced() {
  QUIRE_CHECK(state_ == SequenceState::kRunning && !is_introduced_);
  is_introduced_ = true;
  is_handle_known_ = true;
  forced_token_id_.reset();
}

void Sequence::BecomeSwapped() {
  QUIRE_CHECK(state_ == SequenceState::kRunning);
  QUIRE_CHECK(table.empty() && num_scheduled_tokens_ == 0);
  QUIRE_CHECK_EQ(host_table.num_tokens(), num_computed_tokens_);
  state_ = SequenceState::kSwapped;
  ForgetHandle();
}

void Sequence::BecomeWaiting() {
  QUIRE_CHECK(state_ == SequenceState::kRunning || state_ == SequenceState::kSwapped);
  ForgetWorkersState();
  state_ = SequenceState::kWaiting;
}

void Sequence::BecomeFinished() {
  QUIRE_CHECK(state_ != SequenceState::kFinished);
  ForgetWorkersState();
  state_ = SequenceState::kFinished;
}

void Sequence::BeginSlice(int32_t num_tokens) {
  QUIRE_CHECK(state_ == SequenceState::kRunning);
  QUIRE_CHECK_EQ(num_scheduled_tokens_, 0);
  QUIRE_CHECK(num_tokens > 0 && num_tokens <= gap());
  num_scheduled_tokens_ = num_tokens;
}

void Sequence::EndSlice() {
  QUIRE_CHECK(num_scheduled_tokens_ > 0);
  num_computed_tokens_ += num_scheduled_tokens_;
  num_scheduled_tokens_ = 0;
  num_tokens_computed_ever_ = std::max(num_tokens_computed_ever_, num_computed_tokens_);
}

void Sequence::Commit(TokenId token_id) {
  QUIRE_CHECK(state_ == SequenceState::kRunning);
  QUIRE_CHECK_EQ(gap(), 0);
  output_token_ids_.push_back(token_id);
  num_non_finite_ = 0;
}

void Sequence::CommitForced(TokenId token_id) {
  Commit(token_id);
  candidates_.clear();
  if (is_introduced_) {
    forced_token_id_ = token_id;
  }
}

void Sequence::BecomeIdle() {
  QUIRE_CHECK(state_ == SequenceState::kRunning);
  QUIRE_CHECK(table.empty() && num_scheduled_tokens_ == 0);
  is_introduced_ = false;
  num_computed_tokens_ = 0;
  num_non_finite_ = 0;
  output_token_ids_.clear();
  forced_token_id_.reset();
  candidates_.clear();
  block_hashes.clear();
}

void Sequence::BecomeForkOf(const Sequence& other) {
  QUIRE_CHECK(state_ == SequenceState::kRunning && !is_introduced_);
  QUIRE_CHECK(num_computed_tokens_ == 0 && output_token_ids_.empty());
  QUIRE_CHECK_EQ(table.num_tokens(), other.num_computed_tokens_);
  num_computed_tokens_ = other.num_computed_tokens_;
  num_tokens_computed_ever_ = std::max(num_tokens_computed_ever_, num_computed_tokens_);
  output_token_ids_ = other.output_token_ids_;
  block_hashes = other.block_hashes;
}

void Sequence::KeepCandidates(std::vector<BeamCandidate> candidates) {
  QUIRE_CHECK(state_ == SequenceState::kRunning);
  QUIRE_CHECK_EQ(gap(), 0);
  candidates_ = std::move(candidates);
}

void Sequence::ForgetWorkersState() {
  QUIRE_CHECK(table.empty() && host_table.empty());
  ForgetHandle();
  num_computed_tokens_ = 0;
  num_scheduled_tokens_ = 0;
  candidates_.clear();
}

void Sequence::ForgetHandle() {
  handle_ = 0;
  is_introduced_ = false;
  is_handle_known_ = false;
  forced_token_id_.reset();
}

}  // namespace quire
