#include "scheduler/core/sequence_group.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace quire {

SequenceGroup::SequenceGroup(Request request)
    : request_(std::move(request)),
      num_tokens_at_arrival_(request_.num_known_tokens()),
      num_scored_tokens_(request_.num_known_prompt_logprobs) {
  QUIRE_CHECK(request_.num_sequences >= 1 && request_.group_size() >= request_.num_sequences);
  QUIRE_CHECK(request_.num_live_sequences() >= 1);
  sequences_.reserve(static_cast<size_t>(request_.group_size()));
  request_.resumed.resize(static_cast<size_t>(request_.group_size()));
  for (ResumedSequence& resumed : request_.resumed) {
    Sequence& sequence =
        sequences_.emplace_back(static_cast<int32_t>(sequences_.size()),
                                static_cast<int32_t>(request_.prompt_token_ids.size()),
                                std::move(resumed.token_ids));
    if (resumed.has_ended) {
      sequence.BecomeFinished();
    }
  }
  request_.resumed.clear();  // the sequences hold the resumed output now
}

void SequenceGroup::SetRank(int64_t value) {
  QUIRE_CHECK(!has_rank());
  rank_ = value;
}

int32_t SequenceGroup::num_live_sequences() const {
  return static_cast<int32_t>(
      std::count_if(sequences_.begin(), sequences_.end(), [](const Sequence& sequence) {
        return !sequence.is_finished();
      }));
}

bool SequenceGroup::is_running() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const Sequence& sequence) {
    return sequence.is_running();
  });
}

bool SequenceGroup::is_swapped() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const Sequence& sequence) {
    return sequence.is_swapped();
  });
}

bool SequenceGroup::has_started() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const Sequence& sequence) {
    return sequence.num_tokens_computed_ever() > 0;
  });
}

bool SequenceGroup::is_undivided() const {
  return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& sequence) {
    return sequence.is_finished() || sequence.num_output_tokens() == 0;
  });
}

void SequenceGroup::NoteCached(int32_t num_tokens) {
  if (!num_cached_prompt_tokens_.has_value()) {
    num_cached_prompt_tokens_ = std::min(num_tokens, request_.num_prompt_tokens());
  }
}

bool SequenceGroup::IsFirstLive(const Sequence& sequence) const {
  const auto first = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& other) {
    return !other.is_finished();
  });
  return first != sequences_.end() && &*first == &sequence;
}

bool SequenceGroup::IsLeader(const Sequence& sequence) const {
  return is_undivided() && IsFirstLive(sequence);
}

bool SequenceGroup::ScoresPrompt(const Sequence& sequence) const {
  return num_scored_tokens_ < request_.num_prompt_logprobs() && IsFirstLive(sequence);
}

bool SequenceGroup::WaitsForLeader(const Sequence& sequence) const {
  const bool has_something_to_share = sequence.num_prompt_tokens() > 1;
  return has_something_to_share && !is_beam_search() && !sequence.is_introduced() &&
         sequence.table.empty() && is_undivided() && !IsLeader(sequence);
}

bool SequenceGroup::IsIdle(const Sequence& sequence) const {
  // Before the first step of the search, the leader is the only live beam. After that step, every
  // live beam has an output token.
  return is_beam_search() && sequence.num_output_tokens() == 0 && !IsLeader(sequence);
}

std::vector<TokenId> SequenceGroup::TokenIdsOf(const Sequence& sequence) const {
  std::vector<TokenId> token_ids;
  token_ids.reserve(static_cast<size_t>(sequence.num_tokens()));
  token_ids.insert(
      token_ids.end(), request_.prompt_token_ids.begin(), request_.prompt_token_ids.end());
  token_ids.insert(
      token_ids.end(), sequence.output_token_ids().begin(), sequence.output_token_ids().end());
  return token_ids;
}

}  // namespace quire
