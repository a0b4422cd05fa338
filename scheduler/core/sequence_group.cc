#include "scheduler/core/sequence_group.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace quire {

SequenceGroup::SequenceGroup(Request request) : request_(std::move(request)) {
  QUIRE_CHECK(request_.num_sequences >= 1);
  sequences_.reserve(static_cast<size_t>(request_.num_sequences));
  for (int32_t index = 0; index < request_.num_sequences; ++index) {
    sequences_.emplace_back(index, static_cast<int32_t>(request_.prompt_token_ids.size()));
  }
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

bool SequenceGroup::IsLeader(const Sequence& sequence) const {
  auto first = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& other) {
    return !other.is_finished();
  });
  return is_undivided() && first != sequences_.end() && &*first == &sequence;
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

void SequenceGroup::HashBlocks(Sequence& sequence,
                               int32_t num_blocks,
                               int32_t block_size_tokens,
                               const Hash128& key) const {
  std::vector<TokenId> tokens(static_cast<size_t>(block_size_tokens));
  for (auto i = static_cast<int32_t>(sequence.block_hashes.size()); i < num_blocks; ++i) {
    for (int32_t k = 0; k < block_size_tokens; ++k) {
      const int32_t position = i * block_size_tokens + k;
      tokens[static_cast<size_t>(k)] =
          position < sequence.num_prompt_tokens()
              ? request_.prompt_token_ids[static_cast<size_t>(position)]
              : sequence.output_token_ids()[static_cast<size_t>(position -
                                                                sequence.num_prompt_tokens())];
    }
    const BlockHash parent = i == 0 ? RootHash(key, request_.cache_salt)
                                    : sequence.block_hashes[static_cast<size_t>(i) - 1];
    sequence.block_hashes.push_back(ChainHash(key, parent, tokens));
  }
}

}  // namespace quire
