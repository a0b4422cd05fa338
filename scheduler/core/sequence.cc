#include "scheduler/core/sequence.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {

Sequence::Sequence(int32_t sequence_index, int32_t num_prompt_tokens)
    : sequence_index_(sequence_index), num_prompt_tokens_(num_prompt_tokens) {
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
  QUIRE_CHECK(num_computed_tokens_ == 0 && num_scheduled_tokens_ == 0);
  QUIRE_CHECK(num_computed_tokens >= 0 && num_computed_tokens < num_tokens());
  QUIRE_CHECK_EQ(num_computed_tokens, table.num_tokens());
  num_computed_tokens_ = num_computed_tokens;
}

void Sequence::BecomeIntroduced() {
  QUIRE_CHECK(state_ == SequenceState::kRunning && !is_introduced_);
  is_introduced_ = true;
}

void Sequence::BecomeSwapped() {
  QUIRE_CHECK(state_ == SequenceState::kRunning);
  QUIRE_CHECK(table.empty() && num_scheduled_tokens_ == 0);
  QUIRE_CHECK_EQ(host_table.num_tokens(), num_computed_tokens_);
  state_ = SequenceState::kSwapped;
  handle_ = 0;
  is_introduced_ = false;
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

void Sequence::ForgetWorkersState() {
  QUIRE_CHECK(table.empty() && host_table.empty());
  handle_ = 0;
  is_introduced_ = false;
  num_computed_tokens_ = 0;
  num_scheduled_tokens_ = 0;
}

}  // namespace quire
